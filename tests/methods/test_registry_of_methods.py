"""Methods by name, and settings that a method does not read."""

from __future__ import annotations

import pytest
from toy import make_method

from fastswa.config import MethodConfig
from fastswa.errors import RequestError
from fastswa.methods import METHODS, method_class, refuse_unused

OTHERS: dict[str, object] = {
    "weight": 3.0,
    "ramp": 2.0,
    "divergence": "kl",
    "tie": 0.5,
    "both_sides": True,
    "teacher": "swa",
    "teacher_decay": 0.5,
    "teacher_start": 1.0,
    "teacher_every": 2.0,
    "memory_decay": 0.5,
    "epsilon": 1.0,
    "xi": 0.1,
    "power_iterations": 2,
    "own_dropout": True,
    "correlation": 0.5,
    "entropy": 0.5,
    "threshold": 0.5,
    "threshold_decay": 0.5,
    "fairness": 0.5,
    "together": True,
    "guesser": "teacher",
}
GUESSING = {"weight", "ramp", "tie", "together", "guesser", "teacher_decay"}
VAT = {"weight", "ramp", "tie", "epsilon", "xi", "power_iterations", "own_dropout", "correlation"}
EFFECTS = {
    "supervised": set(),
    "pi": {"weight", "ramp", "divergence", "tie", "both_sides"},
    "mean-teacher": {
        "weight",
        "ramp",
        "divergence",
        "tie",
        "teacher",
        "teacher_decay",
        "teacher_start",
        "teacher_every",
    },
    "temporal-ensembling": {"weight", "ramp", "divergence", "tie", "memory_decay"},
    "vat": VAT,
    "vat-entmin": VAT | {"entropy"},
    "fixmatch": GUESSING | {"threshold"},
    "flexmatch": GUESSING | {"threshold"},
    "freematch": GUESSING | {"threshold_decay", "fairness"},
}


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("setting", OTHERS)
def test_setting_without_effect_is_refused(name: str, setting: str) -> None:
    if setting in EFFECTS[name]:
        refuse_unused(name, ["name", setting])
        assert getattr(make_method(name, **{setting: OTHERS[setting]}).config, setting) == OTHERS[setting]
        return
    sentence = rf"^method\.{setting} has no effect on the method {name}; leave it out\.$"
    with pytest.raises(RequestError, match=sentence):
        refuse_unused(name, ["name", setting])


def test_every_setting_has_an_effect_on_some_method() -> None:
    settings = MethodConfig.model_fields.keys() - {"name"}
    assert settings <= set().union(*(method_class(name).settings for name in METHODS))


def test_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError, match=r"^unknown method 'mean_teacher'; did you mean mean-teacher\?$"):
        make_method("mean_teacher")


def test_every_registered_method_says_what_it_is() -> None:
    for name in METHODS:
        method = make_method(name)
        assert method.config.name == name
        assert "classification" in method.terms
