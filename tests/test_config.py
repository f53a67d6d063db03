"""From recipe, file and flags to one Config: precedence, presets, what follows what, and errors in one sentence."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fastswa.config import RESUMABLE, BatchConfig, Config, DataConfig, ModelConfig, resolved, to_dict
from fastswa.errors import RequestError
from fastswa.layers import (
    ALIASES,
    SHORTHANDS,
    build_config,
    fields,
    file_layer,
    flag_layer,
    merge,
    recipe_layer,
    recipe_names,
    recipe_text,
    to_toml,
)


def from_flags(*arguments: str) -> Config:
    return build_config(flag_layer(arguments))


def refusal(*layers: Mapping[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        build_config(*layers)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"sead": 1}, "unknown setting sead; did you mean seed?"),
        ({"schedule": {"lenght": 3}}, "unknown setting schedule.lenght; did you mean length?"),
        ({"optimizer": {"lr": 1}}, "unknown setting optimizer; did you mean optimiser?"),
        ({"method": {"teacher_decai": 0.9}}, "unknown setting method.teacher_decai; did you mean teacher_decay?"),
        ({"averaging": {"swa": {"kinds": "swa"}}}, "unknown setting averaging.swa.kinds; did you mean kind?"),
        ({"schedule.epochs": 3}, "unknown setting schedule.epochs; it is epochs within schedule."),
        ({"epochs": 3}, "unknown setting epochs; it is epochs within schedule."),
        ({"labels": 50}, "unknown setting labels; it is labels within split."),
        (
            {"data": {"qqqqqq": 1}},
            "unknown setting data.qqqqqq; there are: aliases, channels, extra, extra_file, extra_images, "
            "extra_per_epoch, root, size, skip_bad, source, target.",
        ),
    ],
)
def test_unknown_settings_are_refused_with_the_nearest_name(layer: dict[str, Any], sentence: str) -> None:
    assert refusal(layer) == sentence


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"seed": "abc"}, "seed: 'abc' is not a whole number."),
        ({"seed": 1.5}, "seed: '1.5' is not a whole number."),
        ({"seed": -1}, "seed: '-1' is refused: it should be greater than or equal to 0."),
        ({"split": {"labels": "many"}}, "split.labels: 'many' is not a whole number."),
        ({"optimiser": {"lr": "fast"}}, "optimiser.lr: 'fast' is not a number."),
        ({"optimiser": {"lr": float("inf")}}, "optimiser.lr: 'Infinity' is not a finite number."),
        ({"optimiser": {"lr": float("nan")}}, "optimiser.lr: 'NaN' is not a finite number."),
        ({"optimiser": {"momentum": 1.0}}, "optimiser.momentum: '1.0' is refused: it should be less than 1."),
        ({"augment": {"flip": "maybe"}}, "augment.flip: 'maybe' is not true or false."),
        ({"data": {"source": 5}}, "data.source: '5' is not text."),
        ({"model": "cnn13"}, "model: 'cnn13' is not a table of settings."),
        ({"averaging": 5}, "averaging: '5' is not a table of settings."),
        ({"averaging": {"swa": 5}}, "averaging.swa: '5' is not a table of settings."),
        ({"method": {"divergence": "l2"}}, "method.divergence: 'l2' is not one of 'squared' or 'kl'."),
        (
            {"averaging": {"a": {"kind": "x"}}},
            "averaging.a.kind: 'x' is not one of 'swa', 'fast-swa', 'ema' or 'last'.",
        ),
        ({"checkpoint": {"keep": ["a"]}}, "checkpoint.keep.0: 'a' is not a whole number."),
        ({"model": {"heads": 3}}, "model.heads: '3' is refused: it should be less than or equal to 2."),
        ({"schedule": {"length": 0}}, "schedule.length: '0' is refused: it should be greater than 0."),
        ({"batch": {"labelled": 200}}, "batch.labelled (200) is larger than batch.size (100)."),
        ({"schedule": {"period": 100}}, "schedule.period (100) is below schedule.length (180)."),
        ({"schedule": {"cycle": 200}}, "schedule.cycle (200) is above schedule.length (180)."),
        (
            {"averaging": {"Fast": {}}},
            "averaging.Fast: an average's name is lower-case letters, digits and underscores, not 'Fast'.",
        ),
        (
            {"averaging": {"teacher": {}}},
            "averaging.teacher: 'teacher' is the name of a trained network, choose another.",
        ),
        *(
            ({"data": {name: empty}}, f"data.{name} is empty; name a data set, a folder, a manifest or an .npz file.")
            for name in ("source", "target", "extra")
            for empty in ("", " ")
        ),
        *(
            ({"method": {"threshold": value}}, f"method.threshold ({value}) must be 0 or more, and below 1.")
            for value in (1, -0.5, "nan", "inf")
        ),
        *(
            (
                {"method": {"name": "self-ensembling", "threshold": value}},
                f"method.threshold ({value}) must lie between 0 and 1, both excluded.",
            )
            for value in (0, 1, -0.5, "nan", "inf")
        ),
        ({"method": {"threshold": "high"}}, "method.threshold: 'high' is not a number."),
        ({"schedule": {"preset": "shrt"}}, "schedule.preset: unknown preset 'shrt'; did you mean short?"),
    ],
)
def test_wrong_values_are_refused_in_one_sentence(layer: dict[str, Any], sentence: str) -> None:
    assert refusal(layer) == sentence


def test_several_wrong_settings_still_give_one_sentence() -> None:
    message = refusal({"seed": "a", "optimiser": {"lr": "b"}})
    assert message == "seed: 'a' is not a whole number."


def test_defaults_are_the_papers() -> None:
    config = build_config({})
    assert (config.batch.size, config.batch.labelled) == (100, 50)
    assert (config.method.name, config.method.weight, config.method.ramp) == ("mean-teacher", 100, 5)
    assert (config.method.divergence, config.method.tie, config.method.teacher_decay) == ("squared", 0.01, 0.97)
    optimiser = config.optimiser
    assert (optimiser.lr, optimiser.momentum, optimiser.nesterov, optimiser.weight_decay) == (0.1, 0.9, True, 1e-4)
    schedule = config.schedule
    assert (schedule.length, schedule.period, schedule.cycle, schedule.epochs) == (180, 210, 30, 180)
    assert (config.augment.translate, config.augment.flip, config.augment.noise) == (4, True, 0)
    assert (config.method.memory_decay, config.evaluation.refresh) == (0.6, 100)


def test_flags_win_over_the_file_and_the_file_over_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("seed = 7\n[optimiser]\nlr = 0.05\n[schedule]\nepochs = 33\n")
    recipe = {"seed": 1, "optimiser": {"lr": 0.2, "weight_decay": 2e-4}, "schedule": {"epochs": 11}}
    config = build_config(recipe, file_layer(file), flag_layer(["--schedule.epochs", "44"]))
    assert (config.seed, config.optimiser.lr, config.schedule.epochs) == (7, 0.05, 44)
    assert config.optimiser.weight_decay == 2e-4
    assert config.optimiser.momentum == 0.9


def test_merge_lays_tables_over_one_another_without_changing_them() -> None:
    below, above = {"a": {"x": 1, "y": 2}, "b": 1, "c": {"z": 1}}, {"a": {"y": 3}, "b": {"w": 4}, "c": 5}
    assert merge(below, above) == {"a": {"x": 1, "y": 3}, "b": {"w": 4}, "c": 5}
    assert below == {"a": {"x": 1, "y": 2}, "b": 1, "c": {"z": 1}}


def test_another_network_leaves_the_settings_of_the_first_behind() -> None:
    """Nobody could take a width out again that a recipe has, and networks refuse what they do not know."""
    recipe = {"model": {"name": "resnet9", "width": 128, "heads": 1}}
    other = build_config(recipe, flag_layer(["--model", "wrn-28-2"])).model
    assert (other.name, other.width, other.heads) == ("wrn-28-2", None, 1)
    given = build_config(recipe, flag_layer(["--model", "small", "--model.width", "8"])).model
    assert (given.name, given.width, given.heads) == ("small", 8, 1)
    assert build_config(recipe, flag_layer(["--model", "resnet9"])).model.width == 128
    assert build_config({"model": {"width": 8}}, {"model": {"name": "small"}}).model.width == 8


def test_averages_of_several_layers_come_together() -> None:
    config = build_config(
        {"averaging": {"swa": {"kind": "swa"}, "fast": {"kind": "fast-swa", "every": 2}}},
        flag_layer(["--averaging.fast.start", "100", "--averaging.ema.kind", "ema"]),
    )
    assert set(config.averaging) == {"swa", "fast", "ema"}
    assert (config.averaging["fast"].kind, config.averaging["fast"].start, config.averaging["fast"].every) == (
        "fast-swa",
        100,
        2,
    )


def schedule_of(config: Config) -> tuple[float, float, float]:
    return config.schedule.length, config.schedule.period, config.schedule.cycle


def test_presets_are_the_papers_schedules() -> None:
    assert schedule_of(from_flags("--schedule.preset", "short")) == (180, 210, 30)
    assert schedule_of(from_flags("--schedule.preset", "long")) == (1500, 1800, 200)


def test_numbers_beside_a_preset_win_and_a_later_preset_wins_over_numbers() -> None:
    long = {"schedule": {"preset": "long", "cycle": 100}}
    assert schedule_of(build_config(long)) == (1500, 1800, 100)
    assert schedule_of(build_config(long, {"schedule": {"preset": "short"}})) == (180, 210, 30)
    assert schedule_of(build_config(long, {"schedule": {"period": 1600}})) == (1500, 1600, 100)
    assert long == {"schedule": {"preset": "long", "cycle": 100}}


HELD = ("efficientnet-lite0", True, True, 1, 224)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([["--pretrained"]], HELD),
        ([["--model.pretrained", "false"]], ("small", False, False, 2, None)),
        ([["--pretrained", "--data.size", "96"]], (*HELD[:4], 96)),
        ([["--data.size", "64"], ["--pretrained"]], (*HELD[:4], 64)),
        ([["--pretrained"], ["--data.size", "64"]], (*HELD[:4], 64)),
        ([["--pretrained", "--model.frozen", "false"]], ("efficientnet-lite0", True, False, 2, 224)),
        ([["--model.width", "64"], ["--pretrained"]], HELD),
        ([["--model.frozen", "false"], ["--pretrained", "yes"]], ("efficientnet-lite0", True, False, 2, 224)),
        # A network that is named is trained as its own settings say.
        ([["--pretrained", "--model", "timm:resnet18"]], ("timm:resnet18", True, False, 2, None)),
        ([["--model", "small"], ["--pretrained"]], ("small", True, False, 2, None)),
    ],
)
def test_pretrained_alone_names_network_and_size(layers: list[list[str]], expected: tuple[Any, ...]) -> None:
    config = build_config(*(flag_layer(layer) for layer in layers))
    model = config.model
    assert (model.name, model.pretrained, model.frozen, model.heads, config.data.size) == expected
    assert model.width is None


def test_pretrained_in_python_and_in_files_is_written_out_too() -> None:
    written = from_flags("--pretrained")
    assert resolved(Config.model_validate({"model": {"pretrained": True}})) == written
    assert Config(model=ModelConfig(pretrained=True), data=DataConfig(size=64)).model.name == "efficientnet-lite0"
    assert Config(model=ModelConfig(pretrained=True), data=DataConfig(size=64)).data.size == 64
    assert build_config(tomllib.loads(to_toml(written))) == written


KINDS = {"s": {"kind": "swa"}, "f": {"kind": "fast-swa"}, "e": {"kind": "ema"}}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"preset": "short"}, {"s": (180, 30), "f": (150, 3), "e": (0, 0)}),
        ({"preset": "long"}, {"s": (1500, 200), "f": (1300, 20), "e": (0, 0)}),
        ({"length": 50, "period": 60, "cycle": 10}, {"s": (50, 10), "f": (40, 1), "e": (0, 0)}),
        ({"after": "constant", "epochs": 240}, {"s": (180, 1), "f": (180, 1), "e": (0, 0)}),
        ({"cycle": 0, "epochs": 240}, {"s": (180, 1), "f": (180, 1), "e": (0, 0)}),
        # Nothing follows the descent: its last quarter is averaged.
        ({"after": "constant"}, {"s": (135, 1), "f": (135, 1), "e": (0, 0)}),
        ({"cycle": 0}, {"s": (135, 1), "f": (135, 1), "e": (0, 0)}),
    ],
)
def test_averages_follow_the_schedule(schedule: dict[str, Any], expected: dict[str, tuple[float, float]]) -> None:
    averaging = build_config({"schedule": schedule, "averaging": KINDS}).averaging
    assert {name: (average.start, average.every) for name, average in averaging.items()} == expected


def test_averages_own_numbers_stay_zero_included() -> None:
    average = build_config({"averaging": {"f": {"start": 0, "every": 0}}}).averaging["f"]
    assert (average.kind, average.start, average.every) == ("fast-swa", 0, 0)


def test_split_seed_follows_the_seed_unless_set() -> None:
    assert build_config({"seed": 12}).split.seed == 12
    assert build_config({"seed": 12, "split": {"seed": 0}}).split.seed == 0


def test_resolving_twice_changes_nothing() -> None:
    config = build_config({"averaging": KINDS, "seed": 3})
    assert resolved(config) == config


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_go_round_through_toml(name: str) -> None:
    config = build_config(recipe_layer(name))
    assert build_config(tomllib.loads(to_toml(config))) == config


def test_every_setting_goes_round_through_toml() -> None:
    layer = {
        "seed": 5,
        "data": {"source": 'a "quoted" pfad/ä.npz', "root": "/tmp/x y"},
        "split": {"labels": 40, "unlabelled": 0, "validation": 7, "seed": 9, "file": "list.txt"},
        "batch": {"size": 64, "labelled": 16, "steps": 10},
        "augment": {"translate": 0, "flip": False, "noise": 0.15},
        "model": {"name": "cnn13", "heads": 1, "dropout": 0.25, "width": 8},
        "method": {"name": "pi", "weight": 1e-9, "both_sides": True, "divergence": "kl", "xi": 1e22},
        "optimiser": {"lr": 1 / 3, "nesterov": False},
        "schedule": {"length": 1.5, "period": 2.25, "cycle": 0.1, "after": "constant", "constant_lr": 0.0},
        "averaging": {**KINDS, "quarter": {"every": 0.25, "start": 1 / 3, "decay": 0.999}},
        "checkpoint": {"keep": [150, 180]},
        "device": {"name": "cpu", "precision": "fp64", "deterministic": True, "threads": 2},
        "start": {"run": "runs/a@150"},
        "log": {"tensorboard": True},
    }
    config = build_config(layer)
    again = build_config(tomllib.loads(to_toml(config)))
    assert again == config
    assert again.optimiser.lr == 1 / 3
    assert isinstance(again.schedule.epochs, int)
    assert isinstance(again.method.ramp, float)
    assert to_toml(again) == to_toml(config)


def test_plain_dicts_hold_no_none_and_whole_floats_as_integers() -> None:
    plain = to_dict(build_config({"averaging": {"s": {"kind": "swa"}}}))
    assert "file" not in plain["split"]
    assert plain["schedule"]["length"] == 180
    assert isinstance(plain["schedule"]["length"], int)
    assert plain["augment"]["flip"] is True
    assert plain["averaging"]["s"] == {"kind": "swa", "start": 180, "every": 30, "decay": 0.97}


def test_config_is_frozen() -> None:
    config = build_config({})
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1
    with pytest.raises(ValidationError, match="frozen"):
        config.schedule.cycle = 1


def test_unknown_keys_are_refused_by_the_class_too() -> None:
    with pytest.raises(ValidationError, match="unknown setting"):
        Config.model_validate({"schedule": {"lenght": 3}})


def test_flags_in_both_spellings() -> None:
    config = from_flags("--schedule.cycle", "20", "--averaging.fast-swa.every=1.5", "--optimiser.weight-decay", "2e-4")
    assert config.schedule.cycle == 20
    assert config.averaging["fast_swa"].every == 1.5
    assert config.optimiser.weight_decay == 2e-4


def test_the_last_of_two_equal_flags_wins() -> None:
    assert from_flags("--seed", "1", "--seed=2").seed == 2


@pytest.mark.parametrize(
    ("arguments", "deterministic", "seed"),
    [
        (["--deterministic"], True, 0),
        (["--deterministic", "--seed", "3"], True, 3),
        (["--deterministic", "false", "--seed", "3"], False, 3),
        (["--deterministic", "TRUE"], True, 0),
        (["--device.deterministic=false"], False, 0),
    ],
)
def test_switches_take_a_value_or_none(arguments: list[str], deterministic: bool, seed: int) -> None:
    config = from_flags(*arguments)
    assert (config.device.deterministic, config.seed) == (deterministic, seed)


def test_aliases_set_what_they_stand_for() -> None:
    values = {
        "model": "cnn13",
        "method": "pi",
        "optimiser": "sgd",
        "device": "cpu",
        "engine": "eager",
        "precision": "fp64",
        "deterministic": "true",
        "labels": "40",
        "epochs": "7",
        "pretrained": "false",
        "keep-every": "2",
        "keep-from": "4",
        "from": "runs/a@3",
    }
    assert values.keys() == ALIASES.keys()
    config = from_flags(*itertools.chain.from_iterable((f"--{name}", value) for name, value in values.items()))
    assert (config.model.name, config.method.name, config.optimiser.name) == ("cnn13", "pi", "sgd")
    assert "pretrained" in config.model.model_fields_set
    device = config.device
    assert (device.name, device.engine, device.precision, device.deterministic) == ("cpu", "eager", "fp64", True)
    assert (config.split.labels, config.schedule.epochs, config.start.run) == (40, 7, "runs/a@3")
    assert (config.checkpoint.keep_every, config.checkpoint.keep_from) == (2, 4)


@pytest.mark.parametrize(("value", "keep"), [("150", (150,)), ("150,180,240", (150, 180, 240))])
def test_lists_are_given_with_commas(value: str, keep: tuple[int, ...]) -> None:
    assert from_flags("--checkpoint.keep", value).checkpoint.keep == keep


def test_negative_values_reach_validation() -> None:
    assert flag_layer(["--seed", "-1", "--method.weight=-0.5"]) == {"seed": "-1", "method": {"weight": "-0.5"}}
    with pytest.raises(RequestError, match=r"^seed: '-1' is refused: it should be greater than or equal to 0\.$"):
        from_flags("--seed", "-1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sead", "1"], "unknown setting --sead; did you mean seed?"),
        (["--schedule.lenght", "1"], "unknown setting --schedule.lenght; did you mean schedule.length?"),
        (["--modle", "cnn13"], "unknown setting --modle; did you mean model?"),
        (["--averaging.swa.kinds", "x"], "unknown setting --averaging.swa.kinds; did you mean averaging.NAME.kind?"),
        (["--seed"], "--seed needs a value."),
        (["cnn13"], "unexpected argument 'cnn13'; settings are given as --section.name VALUE."),
    ],
)
def test_wrong_flags_are_refused_in_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        flag_layer(arguments)
    assert str(caught.value) == sentence


def test_every_setting_is_a_flag_and_says_what_it_is() -> None:
    for name, field in fields():
        path = name.replace("NAME", "fast_swa")
        # Tables, of numbers by pattern and of names by name, are no single word.
        value, under = ("heads=1", f"{path}.heads") if path in ("optimiser.rates", "data.aliases") else ("1", path)
        assert under in flatten(flag_layer([f"--{path}={value}"]))
        assert field.description, name


def flatten(layer: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in layer.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key}
    return found


def test_settings_listed_are_those_of_the_config() -> None:
    listed = {name for name, _ in fields()}
    everything = build_config({"averaging": {"name": {}}}).model_dump()
    assert {re.sub(r"^averaging\.name\.", "averaging.NAME.", name) for name in flatten(everything)} == listed - {
        *SHORTHANDS
    }


def test_what_a_resume_may_change_are_settings() -> None:
    assert set(RESUMABLE) <= {name for name, _ in fields()}
    assert len(set(RESUMABLE)) == len(RESUMABLE)


def test_aliases_stand_for_settings_and_hide_none() -> None:
    names = {name for name, _ in fields()}
    assert set(ALIASES.values()) <= names
    assert not ALIASES.keys() & names


def test_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        RequestError, match=r"^unknown recipe 'digit-mean-teacher'; did you mean digits-mean-teacher\?$"
    ):
        recipe_layer("digit-mean-teacher")
    assert recipe_text("digits-mean-teacher").startswith("#")


def test_unreadable_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^cannot read .*none\.toml: No such file or directory\.$"):
        file_layer(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = = 1")
    with pytest.raises(RequestError, match=r"broken\.toml is not valid TOML: .*line 1"):
        file_layer(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match=r"^cannot read .*broken\.toml: it is not text\.$"):
        file_layer(broken)


def test_a_number_of_steps_is_a_cosine_to_zero_in_whole_epochs() -> None:
    config = build_config({"schedule": {"steps": 55_000}, "averaging": KINDS})
    assert (config.schedule.epochs, config.batch.steps, *schedule_of(config)) == (55, 1000, 55, 55, 0)
    assert config.schedule.after == "constant"
    found = {name: (average.start, average.every) for name, average in config.averaging.items()}
    # The last thirteen epochs and the one before them: fourteen iterates, of which the end is one.
    assert found == {"s": (42, 1), "f": (42, 1), "e": (0, 0)}
    config = from_flags("--schedule.steps", "2500")
    assert (config.schedule.epochs, config.batch.steps) == (3, 834)


def test_steps_take_the_epochs_that_are_given_and_replace_the_schedule_below() -> None:
    recipe = {"batch": {"steps": 250}, "schedule": {"preset": "short", "epochs": 240}}
    config = build_config(recipe, {"schedule": {"steps": 1100}})
    assert (config.schedule.epochs, config.batch.steps, *schedule_of(config)) == (5, 220, 5, 5, 0)
    config = build_config({"schedule": {"steps": 48_000}}, {"schedule": {"steps": 1500}})
    assert (config.schedule.epochs, config.batch.steps) == (2, 750)
    config = build_config(recipe, {"schedule": {"steps": 1100, "period": 12}, "batch": {"steps": 100}})
    assert (config.schedule.epochs, config.batch.steps, *schedule_of(config)) == (11, 100, 11, 12, 0)
    assert recipe == {"batch": {"steps": 250}, "schedule": {"preset": "short", "epochs": 240}}


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5"])
def test_steps_that_are_no_number_of_steps_are_refused(value: str) -> None:
    with pytest.raises(RequestError, match=f"^schedule.steps: '{value}' is not a whole number of at least 1\\.$"):
        from_flags("--schedule.steps", value)


def test_steps_and_epochs_in_one_breath_are_refused() -> None:
    """One after the other they are not: a recipe's may be cut short, which the run says."""
    sentence = "schedule.steps says how long training is, and so does schedule.epochs; give one of them"
    with pytest.raises(RequestError, match=sentence):
        from_flags("--schedule.steps", "400", "--epochs", "1")
    config = build_config({"schedule": {"steps": 48_000}}, {"schedule": {"epochs": 3}})
    assert (config.schedule.epochs, config.schedule.length) == (3, 48)


def test_python_users_get_the_nearest_name_too() -> None:
    with pytest.raises(ValidationError, match="unknown setting schedul; did you mean schedule"):
        Config(schedul={})  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="unknown setting epoch; did you mean epochs"):
        Config(schedule={"epoch": 3})  # type: ignore[arg-type]


def test_python_users_may_give_shorthands() -> None:
    config = Config(schedule={"preset": "long", "cycle": 100})  # type: ignore[arg-type]
    assert schedule_of(config) == (1500, 1800, 100)
    config = Config(schedule={"steps": 2500}, batch=BatchConfig(size=20))  # type: ignore[arg-type]
    assert (config.schedule.epochs, config.batch.steps, config.batch.size) == (3, 834, 20)
    with pytest.raises(ValidationError, match=r"schedule\.preset: unknown preset 'shrt'; did you mean short\?"):
        Config(schedule={"preset": "shrt"})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^batch: '5' is not a table of settings\."):
        build_config({"schedule": {"steps": 2500}, "batch": 5})
