"""`fastswa bench`: the time of a step."""

from __future__ import annotations

from fastswa.arguments import COMMON, Arguments, Verb


def run(arguments: Arguments) -> int:
    from fastswa.bench import CASES, run_bench
    from fastswa.config import DeviceConfig
    from fastswa.errors import RequestError
    from fastswa.training.device import choose_compute

    if arguments.targets:
        raise RequestError(f"bench takes no '{arguments.targets[0]}'; --models A,B names networks.")
    device = arguments.options.get("--device", "auto")
    on_cpu = choose_compute(DeviceConfig(name=device)).device.type == "cpu"
    default = "small" if on_cpu else ",".join(CASES)
    return run_bench(
        arguments.options.get("--models", default).split(","),
        device,
        threads=arguments.whole("--threads", 0) if "--threads" in arguments else None,
        seconds=arguments.number("--seconds", 4.0),
        as_json="--json" in arguments,
        batch=arguments.whole("--batch", 2) if "--batch" in arguments else None,
        workers=arguments.whole("--workers", 0, zero=True) if "--workers" in arguments else None,
    )


VERB = Verb(
    run,
    "bench [--device cpu|cuda] [--models A,B]",
    "the time of a training step in each engine, beside a naive loop and the convolutions alone",
    {
        "--device": True,
        "--models": True,
        "--threads": True,
        "--seconds": True,
        "--batch": True,
        "--workers": True,
        **COMMON,
    },
    details=(
        "On the CPU only the digits network by default: --models small,cnn13,shake-shake-26-2x96d adds others.\n"
        "resnet9 and wrn-28-2 take FixMatch steps of 64 + 448 images, the others Mean Teacher's. --batch N takes N\n"
        "images a step instead, --workers N processes to load PIL images (0: none but this one)."
    ),
)
