"""Config: every setting of a run, typed, validated, frozen.

Settings left at None follow others (`split.seed` follows `seed`, an average's `start` the schedule);
`resolved` fills them in, and a run's config.toml holds the resolved ones, so that it repeats the run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastswa.registry import nearest
from fastswa.shorthands import says_yes, written_out

NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A table of settings: frozen, unknown keys refused with the nearest valid name."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise ValueError(f"unknown setting {name}; {nearest(str(name), cls.model_fields)}")
        return given


SomeSection = TypeVar("SomeSection", bound=Section)


class DataConfig(Section):
    source: str = Field(
        "digits",
        description=(
            "digits, cifar10, cifar100, stl10, mnist, usps, usps-margin, "
            "or one's own: a folder, a manifest, an .npz file"
        ),
    )
    root: str = Field(
        "data", description="where downloaded data sets lie, and own ones whose relative path leads nowhere from here"
    )
    size: Annotated[int, Field(ge=8, le=1024)] | None = Field(
        None, description="side that images are resized to; none given: own images as they are, or a common one"
    )
    channels: Literal["auto", "grey", "rgb"] = Field("auto", description="grey, rgb, or auto: as they are")
    skip_bad: bool = Field(False, description="leave out own images that cannot be read")
    target: str | None = Field(
        None, description="another domain's images, of which no label is trained on: any such source; not with extra"
    )
    aliases: dict[str, str] = Field(
        {}, description="classes of source and target with different names that are the same, such as automobile=car"
    )
    extra: str | None = Field(
        None, description="a second source of unlabelled images: any of the above, an .npy file or tiny_images.bin"
    )
    extra_images: Positive | None = Field(
        None, description="at most this many of the extra images, drawn once by split.seed; none given: all"
    )
    extra_file: str | None = Field(
        None, description="a text file of the extra images to take, one number or FIRST-LAST a line"
    )
    extra_per_epoch: Positive | None = Field(
        None, description="at most this many of the extra or target images an epoch, drawn anew each time; none: all"
    )

    @model_validator(mode="after")
    def _named(self) -> DataConfig:
        for name in ("source", "target", "extra"):
            given = getattr(self, name)
            if given is not None and not given.strip():
                raise ValueError(f"data.{name} is empty; name a data set, a folder, a manifest or an .npz file")
        return self

    @model_validator(mode="after")
    def _extra(self) -> DataConfig:
        for name in ("extra_images", "extra_file", "extra_per_epoch"):
            named = self.extra or (self.target if name == "extra_per_epoch" else None)
            if named is None and getattr(self, name) is not None:
                raise ValueError(f"data.{name} says which extra images to take, but data.extra names no source")
        return self

    @model_validator(mode="after")
    def _target(self) -> DataConfig:
        if self.target is not None and self.extra is not None:
            raise ValueError("data.target and data.extra both name the images without labels; give one of them")
        if self.target is None and self.aliases:
            raise ValueError("data.aliases match the classes of two domains, but data.target names no second one")
        return self


class SplitConfig(Section):
    labels: NonNegative | None = Field(None, description="labelled images in all; none given: every label there is")
    unlabelled: NonNegative | None = Field(None, description="at most this many unlabelled images")
    validation: NonNegative | None = Field(None, description="labelled training images held out for choosing")
    seed: NonNegative | None = Field(None, description="chooses the labelled images; follows seed")
    file: str | None = Field(
        None, description="a text file of labelled image numbers, one a line, instead of split.labels"
    )


class BatchConfig(Section):
    size: Positive = Field(100, description="images in a step, labelled and unlabelled together")
    labelled: Positive = Field(50, description="labelled images in a step, or half of them in a smaller one")
    steps: Positive | None = Field(
        None, description="steps in an epoch; none given: one pass over the unlabelled images"
    )
    pace: tuple[tuple[NonNegative, Positive], ...] | None = Field(
        None, description="[epoch, steps] pairs: so many from that epoch on instead; `--minutes` writes them as it goes"
    )
    balanced: bool = Field(False, description="each class equally often among the labelled images of a step")
    reuse_labelled: bool = Field(
        False, description="labelled images serve as unlabelled ones too, as in the papers on FixMatch and its kin"
    )

    @model_validator(mode="after")
    def _fits(self) -> BatchConfig:
        if self.labelled > self.size and "labelled" in self.model_fields_set:
            raise ValueError(f"batch.labelled ({self.labelled}) is larger than batch.size ({self.size})")
        return self

    @model_validator(mode="after")
    def _goes_on(self) -> BatchConfig:
        epochs = [epoch for epoch, _ in self.pace or ()]
        if epochs != sorted(set(epochs)):
            raise ValueError(f"batch.pace: the epochs {', '.join(map(str, epochs))} do not follow one another")
        return self


class AugmentConfig(Section):
    translate: NonNegative = Field(4, description="translation by up to this many pixels, with reflection")
    flip: bool = Field(True, description="horizontal flips")
    warp: bool = Field(
        False, description="weak views: translation by parts of a pixel, nothing reflected, as one bilinear warp"
    )
    affine: NonNegativeFloat = Field(
        0.0, description="that warp: standard deviation of the entries of a random 2x2 matrix about the identity"
    )
    beyond: Literal["zero", "edge"] = Field(
        "zero", description="that warp beyond an image's edges: zero after normalisation, or the edge's pixel again"
    )
    standardise: bool = Field(
        False, description="each image to mean 0 and deviation 1, rather than each channel over all images"
    )
    noise: NonNegativeFloat = Field(0.0, description="standard deviation of Gaussian noise, after normalisation")
    student: Literal["weak", "strong"] = Field("weak", description="which view the student sees, with any method")
    operations: Annotated[int, Field(ge=1, le=8)] = Field(2, description="strong views: operations drawn for an image")
    cutout: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="strong views: side of the square painted over, as a part of the image's"
    )

    kept: NonNegative = Field(
        0,
        description="with model.frozen: views of each image that pass the held layers once, before training; 0 passes "
        "new ones at every step",
    )

    @model_validator(mode="after")
    def _warps(self) -> AugmentConfig:
        if self.affine and not self.warp:
            raise ValueError(f"augment.affine ({self.affine:g}) is a warp's, and augment.warp is off")
        if self.beyond != "zero" and not self.warp:
            raise ValueError(f"augment.beyond ({self.beyond}) is a warp's, and augment.warp is off")
        return self


class ModelConfig(Section):
    name: str = Field(
        "small",
        description="cnn13, shake-shake-26-2x96d, resnet9, wrn-28-2 or -8, small, efficientnet-lite0, or timm:NAME",
    )
    heads: Annotated[int, Field(ge=1, le=2)] = Field(2, description="2 adds a head for consistency")
    dropout: Probability | None = Field(None, description="dropout of networks that have it")
    width: Positive | None = Field(None, description="width of networks that can vary it")
    weight_norm: bool | None = Field(None, description="cnn13: weight norm, on if not given")
    activation: Literal["leaky-relu", "relu"] | None = Field(None, description="cnn13: leaky-relu if not given")
    padded: bool | None = Field(
        None, description="cnn13: 1x1 convolutions padded and the top left of the result pooled, off if not given"
    )
    pretrained: bool = Field(
        False,
        description="efficientnet-lite0 and timm: start from weights learnt on ImageNet; where no network is named, "
        "efficientnet-lite0 with its layers held, on images of 224 pixels",
    )
    frozen: bool = Field(False, description="hold pretrained layers as they are and train the heads alone")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {"heads": 1, **values} if says_yes(values.get("frozen")) else values

    @model_validator(mode="after")
    def _freezes(self) -> ModelConfig:
        if self.frozen and not self.pretrained:
            raise ValueError("model.frozen holds pretrained layers as they are, and model.pretrained is off")
        if self.frozen and self.heads == 2:
            raise ValueError(
                "model.heads is 2, and with model.frozen the two would share nothing that learns; give --model.heads 1"
            )
        return self


# What methods that were published with settings of their own start from. A ramp of one epoch is ours: thresholds that
# begin low let guesses pass while they are still wrong, as statistics follow the first steps late (docs/frontier.md).
PUBLISHED_SETTINGS: dict[str, dict[str, float]] = {
    "fixmatch": {"weight": 1.0, "ramp": 0.0},
    "flexmatch": {"weight": 1.0, "ramp": 1.0},
    "freematch": {"weight": 1.0, "ramp": 1.0},
    "self-ensembling": {"weight": 3.0, "ramp": 0.0, "threshold": 0.968, "teacher_decay": 0.99},
}


class MethodConfig(Section):
    name: str = Field(
        "mean-teacher",
        description=(
            "supervised, pi, mean-teacher, temporal-ensembling, sntg, vat, vat-entmin, vadd, self-ensembling, "
            "fixmatch, flexmatch or freematch"
        ),
    )
    weight: NonNegativeFloat = Field(100.0, description="weight of the consistency term at full ramp")
    ramp: NonNegativeFloat = Field(5.0, description="epochs over which that weight rises")
    divergence: Literal["squared", "kl"] = Field("squared", description="how two predictions are compared")
    tie: NonNegativeFloat = Field(0.01, description="weight that ties the two heads' logits")
    both_sides: bool = Field(False, description="pi: let the gradient flow through both passes")
    teacher: Literal["ema", "swa"] = Field("ema", description="mean-teacher: which average of the student teaches")
    teacher_decay: Probability = Field(0.97, description="decay of the EMA teacher")
    teacher_start: NonNegativeFloat = Field(150.0, description="epoch from which an SWA teacher replaces the EMA")
    teacher_every: NonNegativeFloat = Field(1.0, description="epochs between an SWA teacher's updates")
    memory_decay: Probability = Field(0.6, description="temporal-ensembling: decay of the remembered predictions")
    epsilon: NonNegativeFloat = Field(8.0, description="vat: length of the adversarial perturbation")
    xi: NonNegativeFloat = Field(
        1e-2, description="vat: step of the power iteration; a small one is done in full precision"
    )
    power_iterations: Positive = Field(1, description="vat: power iterations")
    correlation: Probability = Field(
        0.0, description="vat: how far a disturbance's neighbouring pixels correlate; 0.92 is CIFAR-10's"
    )
    own_dropout: bool = Field(False, description="vat: give the disturbed pass a dropout mask of its own")
    entropy: NonNegativeFloat = Field(1.0, description="vat-entmin: weight of the entropy term")
    delta: Probability = Field(0.05, description="vadd: part of a dropout mask's units that the adversary may flip")
    neighbours: PositiveFloat = Field(0.1, description="sntg: the neighbours' weight as a part of the consistency's")
    margin: PositiveFloat = Field(1.0, description="sntg: how far apart images of two classes should lie")
    threshold: float = Field(
        0.95,
        description="fixmatch, flexmatch: certainty from which a prediction teaches; self-ensembling: 0.968",
    )
    threshold_decay: Probability = Field(0.999, description="freematch: decay of the means that its thresholds follow")
    fairness: PositiveFloat = Field(0.01, description="freematch: weight of the fairness term")
    guesser: Literal["student", "teacher"] = Field(
        "student", description="fixmatch and its kin: who labels the weak views; the teacher is the student's EMA"
    )
    together: bool = Field(False, description="fixmatch and its kin: all views in one pass, as in the papers; slower")

    @model_validator(mode="after")
    def _of_its_own(self) -> MethodConfig:
        # A teacher that guesses is the EMA that the papers evaluate.
        slow = {"teacher_decay": 0.999} if self.guesser == "teacher" else {}
        for name, value in (PUBLISHED_SETTINGS.get(self.name, {}) | slow).items():
            if name not in self.model_fields_set:
                object.__setattr__(self, name, value)  # nobody gave it
        return self

    @model_validator(mode="after")
    def _threshold(self) -> MethodConfig:
        if self.name == "self-ensembling" and not 0 < self.threshold < 1:
            raise ValueError(f"method.threshold ({self.threshold:g}) must lie between 0 and 1, both excluded")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"method.threshold ({self.threshold:g}) must be 0 or more, and below 1")
        return self

    @model_validator(mode="after")
    def _one_guesses(self) -> MethodConfig:
        if self.together and self.guesser == "teacher":
            raise ValueError(
                "method.together has the student guess in the pass it learns from, and method.guesser is teacher; "
                "leave one of them out"
            )
        return self


class OptimiserConfig(Section):
    name: Literal["sgd", "adamw"] = Field("sgd", description="sgd or adamw")
    lr: NonNegativeFloat = Field(0.1, le=3e38, description="the highest learning rate (adamw: 0.001)")
    momentum: Probability = Field(0.9, description="momentum; adamw: beta 1")
    nesterov: bool = Field(True, description="sgd: Nesterov's form of momentum")
    weight_decay: NonNegativeFloat = Field(1e-4, description="weight decay (adamw: 0.01)")
    decay_all: bool | None = Field(
        None, description="weight decay on every parameter, on if not given; off: on kernels, not on biases and gains"
    )
    beta2: Probability = Field(0.999, description="adamw: decay of the mean of squared gradients")
    epsilon: PositiveFloat = Field(1e-8, description="adamw: added to the root of that mean")
    rates: dict[str, NonNegativeFloat] = Field(
        {}, description="factors on the learning rate of parameters by pattern, such as heads.*=10,block1.*=0.1"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_own(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "adamw":
            return {"lr": 1e-3, "weight_decay": 1e-2, **values}
        return values


class ScheduleConfig(Section):
    """Short: length 180, period 210, cycle 30. Long: 1500, 1800, 200."""

    epochs: NonNegative = Field(180, description="how far to train")
    length: FiniteFloat = Field(180.0, gt=0, description="epochs before the cycles (l)")
    period: FiniteFloat = Field(210.0, gt=0, description="epochs at which the cosine would reach zero (l0)")
    cycle: NonNegativeFloat = Field(30.0, description="epochs in a cycle (c)")
    after: Literal["cycles", "constant"] = Field("cycles", description="what follows `length`")
    constant_lr: NonNegativeFloat | None = Field(
        None, description="rate after `length` if constant; none given: the one reached"
    )

    @model_validator(mode="after")
    def _fits(self) -> ScheduleConfig:
        if self.period < self.length:
            raise ValueError(f"schedule.period ({self.period:g}) is below schedule.length ({self.length:g})")
        if self.cycle > self.length:
            raise ValueError(f"schedule.cycle ({self.cycle:g}) is above schedule.length ({self.length:g})")
        return self


class AverageConfig(Section):
    kind: Literal["swa", "fast-swa", "ema", "last"] = Field(
        "fast-swa",
        description="swa, fast-swa, ema, or last: the student of an epoch's end with statistics refreshed as theirs",
    )
    start: NonNegativeFloat | None = Field(None, description="first epoch averaged; follows the schedule")
    every: NonNegativeFloat | None = Field(None, description="epochs between averaged iterates; 0: every step")
    decay: Probability = Field(0.97, description="ema: decay")


class EvaluationConfig(Section):
    every: Positive = Field(1, description="epochs between evaluations (the last epoch always)")
    batch: Positive = Field(1000, description="images in an evaluation batch")
    refresh: Positive = Field(100, description="batches that an average's batch-norm statistics come from")


class CheckpointConfig(Section):
    every: Positive = Field(1, description="epochs between checkpoints")
    keep: tuple[NonNegative, ...] = Field((), description="epochs whose checkpoints stay, for --from RUN@EPOCH")
    keep_every: NonNegative = Field(0, description="epochs between iterates kept for `fastswa analyze`; 0: none")
    keep_from: NonNegative | None = Field(None, description="first epoch whose iterate is kept; follows keep_every")
    keep_dtype: Literal["fp32", "bf16"] = Field("fp32", description="numbers of kept iterates: bf16 halves their size")

    @model_validator(mode="after")
    def _keeps(self) -> CheckpointConfig:
        if self.keep_from is not None and not self.keep_every and "keep_every" not in self.model_fields_set:
            raise ValueError(
                "checkpoint.keep_from says where keeping begins; checkpoint.keep_every how often it is done"
            )
        return self


class DeviceConfig(Section):
    name: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    engine: Literal["auto", "eager", "compiled", "graph"] = Field("auto", description="how a step is launched")
    precision: Literal["auto", "fp64", "fp32", "tf32", "bf16"] = Field("auto", description="arithmetic of the networks")
    deterministic: bool = Field(False, description="bit-identical repeats on a GPU too")
    threads: Positive | None = Field(None, description="CPU threads")


class StartConfig(Section):
    run: str | None = Field(None, description="RUN or RUN@EPOCH whose full state this run starts from")
    weights: str | None = Field(None, description="a .safetensors file that the networks start from")


class LogConfig(Section):
    tensorboard: bool = Field(False, description="write TensorBoard events into the run folder")


class AnalysisConfig(Section):
    gradients: NonNegative = Field(0, description="epochs between records of the terms' gradients; 0: none")
    batches: Annotated[int, Field(ge=2)] = Field(16, description="batches that such a record is taken over")


class Config(Section):
    """Every setting of a run, by section: frozen, and refused where a name is unknown or a value cannot be.

    What is not given keeps its default or follows the data. Averages are only taken where `averaging` names some.

    >>> config = Config(method={"name": "pi"}, averaging={"fast_swa": {"kind": "fast-swa"}})
    >>> fastswa.fit(config, out="runs/a")
    """

    seed: NonNegative = Field(0, description="initial weights, batches, augmentation and, unless set, the split")
    data: DataConfig = DataConfig()
    split: SplitConfig = SplitConfig()
    batch: BatchConfig = BatchConfig()
    augment: AugmentConfig = AugmentConfig()
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    averaging: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], AverageConfig] = {}
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    device: DeviceConfig = DeviceConfig()
    start: StartConfig = StartConfig()
    log: LogConfig = LogConfig()
    analysis: AnalysisConfig = AnalysisConfig()

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, given: Any) -> Any:
        return written_out(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _names(self) -> Config:
        taken = sorted({"student", "teacher"} & self.averaging.keys())
        if taken:
            raise ValueError(f"averaging.{taken[0]}: '{taken[0]}' is the name of a trained network, choose another")
        return self

    @model_validator(mode="after")
    def _reused(self) -> Config:
        if self.batch.reuse_labelled and self.data.target is not None:
            raise ValueError(
                "batch.reuse_labelled: of two domains the unlabelled images are the target's alone; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _kept(self) -> Config:
        if not self.augment.kept:
            return self
        if not self.model.frozen:
            raise ValueError("augment.kept keeps what held layers make of views, and model.frozen is off; set it to 0")
        for name in ("extra", "target"):
            if getattr(self.data, name) is not None:
                raise ValueError(f"augment.kept is for the training images; set it to 0, or leave data.{name} out")
        if self.augment.student == "strong":
            raise ValueError("augment.student: with augment.kept no view is strong; set that to 0, or leave this out")
        return self


# What a resumed run may change; everything else would make it another run (`train --from` forks instead).
RESUMABLE = (
    "data.root",
    "schedule.epochs",
    "evaluation.every",
    "evaluation.batch",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.keep_every",
    "checkpoint.keep_from",
    "checkpoint.keep_dtype",
    "device.name",
    "device.engine",
    "device.threads",
    "log.tensorboard",
    "analysis.gradients",
    "analysis.batches",
)


def filled(section: SomeSection, **values: Any) -> SomeSection:
    """The section with `values` for those settings that nobody gave; they go on counting as not given."""
    new = {k: v for k, v in values.items() if k not in section.model_fields_set or getattr(section, k) is None}
    copy = section.model_copy(update=new)
    copy.model_fields_set.difference_update(new)
    return copy


def resolved(config: Config) -> Config:
    """The same settings with those that follow others filled in (data and device excepted).

    Once more after a change, what was filled in before follows the change.
    """
    schedule = config.schedule
    cycle = schedule.cycle if schedule.after == "cycles" else 0.0
    # A descent that ends at zero, or is not followed by anything, leaves nothing to average: its last quarter is.
    goes_on = cycle or (schedule.period > schedule.length and schedule.epochs > schedule.length)
    # In whole epochs where it has some, so that the end itself is averaged too.
    last = schedule.length - (0.0 if goes_on else schedule.length // 4 or schedule.length / 4)
    defaults = {
        # fast-SWA averages ten times a cycle: k = 3 for c = 30, 20 for c = 200, as in the paper.
        "swa": (last, cycle or 1.0),
        "fast-swa": (last - cycle, cycle / 10 or 1.0),
        "ema": (0.0, 0.0),
        "last": (0.0, 1.0),
    }
    averages = {}
    for name, average in config.averaging.items():
        start, every = defaults[average.kind]
        averages[name] = filled(average, start=start, every=every)
    split = filled(config.split, seed=config.seed)
    batch = config.batch
    if batch.labelled >= batch.size:
        batch = filled(batch, labelled=max(batch.size // 2, 1))
    return config.model_copy(update={"averaging": averages, "split": split, "batch": batch})


def to_dict(config: Config, *, only_given: bool = False) -> dict[str, Any]:
    """Plain nested dicts without the settings that are None; whole floats as integers.

    With `only_given` those that somebody gave, so that the others can still follow the data.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return value

    result: dict[str, Any] = plain(config.model_dump(exclude_unset=only_given))
    return result
