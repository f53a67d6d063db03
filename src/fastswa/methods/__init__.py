"""Methods by name: what the loss of one batch is. A new one is a file here and a line in METHODS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastswa.config import MethodConfig
from fastswa.errors import RequestError
from fastswa.registry import resolve

if TYPE_CHECKING:
    from fastswa.methods.method import Method

METHODS = {
    "supervised": "fastswa.methods.supervised:Supervised",
    "pi": "fastswa.methods.pi:Pi",
    "mean-teacher": "fastswa.methods.mean_teacher:MeanTeacher",
    "temporal-ensembling": "fastswa.methods.temporal_ensembling:TemporalEnsembling",
    "vat": "fastswa.methods.vat:VAT",
    "vat-entmin": "fastswa.methods.vat:VATEntMin",
}


def method_class(name: str) -> type[Method]:
    """The class of the method `name`."""
    found: type[Method] = resolve("method", name, METHODS)
    return found


def build(config: MethodConfig, *, images: int, classes: int) -> Method:
    """The method that `config` names, for a data set of `images` training images and `classes` classes."""
    method = method_class(config.name)
    defaults = MethodConfig()
    for setting in MethodConfig.model_fields:
        changed = getattr(config, setting) != getattr(defaults, setting)
        if setting != "name" and changed and setting not in method.settings:
            raise RequestError(f"method.{setting} has no effect on the method {config.name}; leave it out.")
    return method(config, images=images, classes=classes)
