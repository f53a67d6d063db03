"""Methods by name: what the loss of one batch is. A new one is a file here and a line in METHODS."""

from __future__ import annotations

from collections.abc import Iterable
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
    "sntg": "fastswa.methods.sntg:SNTG",
    "vat": "fastswa.methods.vat:VAT",
    "vat-entmin": "fastswa.methods.vat:VATEntMin",
    "vadd": "fastswa.methods.vadd:VAdD",
    "self-ensembling": "fastswa.methods.self_ensembling:SelfEnsembling",
    "fixmatch": "fastswa.methods.fixmatch:FixMatch",
    "flexmatch": "fastswa.methods.flexmatch:FlexMatch",
    "freematch": "fastswa.methods.freematch:FreeMatch",
}


def method_class(name: str) -> type[Method]:
    """The class of the method `name`."""
    found: type[Method] = resolve("method", name, METHODS)
    return found


def build(config: MethodConfig, *, images: int, classes: int) -> Method:
    """The method that `config` names, for a data set of `images` training images and `classes` classes."""
    return method_class(config.name)(config, images=images, classes=classes)


def refuse_unused(name: str, settings: Iterable[str]) -> None:
    """Refuse settings of [method] that a person gave and that the method `name` does not read, of those that exist."""
    for setting in sorted(set(settings) & MethodConfig.model_fields.keys()):
        if setting != "name" and setting not in method_class(name).settings:
            raise RequestError(f"method.{setting} has no effect on the method {name}; leave it out.")
