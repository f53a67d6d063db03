"""Rays: closed forms on a quadratic, the surface of a tiny run, and the command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from torch import Tensor, nn

from conftest import Command
from fastswa.analysis.rays import (
    KINDS,
    Ray,
    Rays,
    along,
    basin,
    between,
    draw,
    random_directions,
    random_ray,
    through,
    told,
)
from fastswa.analysis.study import find_study, plain, read
from fastswa.analysis.subject import Subject, flat, put
from fastswa.analysis.surface import Measured, Surface
from fastswa.errors import RequestError
from fastswa.training.device import Compute, settings_of
from fastswa.training.state import preserved

CURVATURES = torch.linspace(0.5, 4.0, 40, dtype=torch.float64)


def quadratic(vector: Tensor) -> tuple[float, float, float, float]:
    """w'Aw / 2 for a diagonal A, in all four places."""
    value = float(0.5 * (CURVATURES * vector.square()).sum())
    return value, value, value, value


@pytest.fixture(scope="module")
def surface(finished: Path) -> Surface:
    return Surface(Subject(finished, "cpu"))


def test_a_ray_through_two_points_is_the_quadratic_between_them() -> None:
    generator = torch.Generator().manual_seed(0)
    start, end = (torch.randn(40, generator=generator, dtype=torch.float64) for _ in range(2))
    ray = between(quadratic, start, end, 21, ("a", "b"), "sgd")
    length = float((end - start).norm())
    assert ray.marks.tolist() == pytest.approx([0.0, length])
    t = ray.distance / length
    a, b, c = quadratic(start)[0], float((CURVATURES * start * (end - start)).sum()), quadratic(end - start)[0]
    np.testing.assert_allclose(ray.measured.test_error, a + b * t + c * t**2, rtol=1e-12)
    # The two weights are among the points, and the ray goes on beyond both.
    assert {0.0, 1.0} <= set(through(21).tolist())
    assert through(21)[0] == -1
    assert through(21)[-1] == 3
    assert all(len(through(points)) == points and (np.diff(through(points)) > 0).all() for points in range(5, 60))


def test_random_rays_rise_by_half_the_mean_curvature() -> None:
    """E[d'Ad] = tr(A) / p over the sphere; 400 directions leave a standard error of 1%."""
    distances = np.array([0.0, 1.0, 3.0])
    start = torch.zeros(40, dtype=torch.float64)
    ray = random_ray(quadratic, start, distances, count=400, seed=1, name="a")
    wanted = 0.5 * distances**2 * float(CURVATURES.mean())
    np.testing.assert_allclose(ray.measured.test_error, wanted, rtol=0.04)
    assert ray.spread[0] == 0
    assert ray.spread[2] == pytest.approx(9 * ray.spread[1])
    directions = torch.stack(random_directions(40, 5, 1, start))
    assert torch.allclose(directions.norm(dim=1), torch.ones(5, dtype=torch.float64))
    assert (directions @ directions.T - torch.eye(5)).abs().max() < 0.6


def test_a_ray_of_length_zero_is_refused() -> None:
    with pytest.raises(RequestError, match="epoch 1 and epoch 2 are the same weights"):
        between(quadratic, torch.ones(40), torch.ones(40), 9, ("epoch 1", "epoch 2"), "sgd")


def test_a_vector_and_a_network_are_two_forms_of_the_same_weights(finished: Path) -> None:
    subject = Subject(finished, "cpu")
    network, vector = subject.network(), subject.iterate(2)
    put(network, vector)
    assert torch.equal(flat(list(network.parameters())), vector)
    student = subject.state(2).student
    for own, theirs in zip(network.parameters(), student.parameters(), strict=True):
        assert torch.equal(own, theirs)


def test_every_point_has_statistics_of_its_own(surface: Surface, finished: Path) -> None:
    """Those of the first layer are the moments of its outputs over all views; no point leaves a trace in another."""
    subject = surface.subject
    first, other = subject.iterate(2), subject.iterate(4)
    before = surface.at(first)
    surface.at(other)
    assert surface.at(first) == before
    network = surface.put(first)
    layer = network.block1[0]
    means, variances = [], []
    for view, _ in surface._views():
        outputs = layer.conv(view).transpose(0, 1).flatten(1)
        means.append(outputs.mean(dim=1))
        variances.append(outputs.var(dim=1))
    assert torch.allclose(layer.norm.running_mean, torch.stack(means).mean(dim=0), atol=1e-5)
    assert torch.allclose(layer.norm.running_var, torch.stack(variances).mean(dim=0), rtol=1e-4)
    assert not any(module.training for module in network.modules())


def test_work_is_captured_once_and_replayed_at_every_point(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a capture that only counts: what is replayed gives the same, and whatever it changes is declared."""
    subject = Subject(finished, "cpu")
    plain = Surface(subject)
    vectors = [subject.iterate(epoch) for epoch in (2, 4, 2)]
    wanted = [plain.at(vector) for vector in vectors]
    answers = plain.probabilities(vectors[1])
    replayed: list[str] = []

    def capture(work: Callable[[], None], changed: Iterable[Tensor]) -> Callable[[], None]:
        with preserved(changed):
            before = {name: tensor.clone() for name, tensor in surface.network.state_dict().items()}
            work()
        after = surface.network.state_dict()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())

        def replay() -> None:
            replayed.append(work.__name__)
            work()

        return replay

    monkeypatch.setattr("fastswa.analysis.surface.captured", capture)
    monkeypatch.setattr(Compute, "captures", property(lambda compute: True))
    surface = Surface(subject)
    assert [surface.at(vector) for vector in vectors] == wanted
    assert replayed == ["_refresh", "_measure"] * 2
    first = surface.probabilities(vectors[1])
    assert torch.equal(first, answers)
    assert torch.equal(surface.probabilities(vectors[1]), answers)
    assert replayed[4:] == ["_refresh", "_refresh", "_answer"]
    surface.probabilities(vectors[0])
    assert torch.equal(first, answers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed_points_are_those_of_eager_passes(finished: Path) -> None:
    subject = Subject(finished, "cuda")
    assert subject.compute.captures
    surface, eager = Surface(subject), Surface(subject)
    eager.compute = dataclasses.replace(subject.compute, engine="eager")
    with settings_of(subject.compute):
        for epoch in (2, 4, 3, 2):
            vector = subject.iterate(epoch)
            np.testing.assert_allclose(surface.at(vector), eager.at(vector), rtol=1e-3)
            assert torch.allclose(surface.probabilities(vector), eager.probabilities(vector), atol=2e-3)


def test_error_and_loss_are_those_of_the_networks_own_answers(surface: Surface) -> None:
    vector = surface.subject.iterate(4)
    measured = surface.at(vector)
    probabilities, labels = surface.probabilities(vector), surface.test.labels
    wrong = (probabilities.argmax(dim=1) != labels).double().mean()
    assert measured[2] == pytest.approx(100 * float(wrong))
    assert measured[3] == pytest.approx(float(F.nll_loss(probabilities.log(), labels)), rel=1e-4)
    assert len(surface.train.labels) == len(surface.subject.material.split.labelled)


@pytest.mark.parametrize("images", ["train", "test"])
def test_the_adversarial_direction_is_the_steepest(surface: Surface, images: str) -> None:
    """The slope of the loss along it is the gradient's length, by central differences."""
    vector = surface.subject.iterate(4)
    gradient = surface.gradient(vector, images)
    chosen = getattr(surface, images)

    def loss(point: Tensor) -> float:
        put(surface.network, point)
        surface.network.eval()
        norms = [m for m in surface.network.modules() if isinstance(m, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train()
            norm.momentum = 0.0
        with torch.no_grad():
            logits = surface.network(chosen.augment.plain(chosen.pixels)).logits
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
        return float(F.cross_entropy(logits.double(), chosen.labels))

    step = 1e-2 * gradient / gradient.norm()
    slope = (loss(vector + step) - loss(vector - step)) / 2e-2
    assert slope == pytest.approx(float(gradient.norm()), rel=0.01)


def test_along_goes_where_it_says() -> None:
    direction = torch.zeros(40, dtype=torch.float64)
    direction[3] = 1.0
    measured = along(quadratic, torch.zeros(40, dtype=torch.float64), direction, np.array([0.0, 2.0]))
    assert measured.train_loss.tolist() == [0.0, pytest.approx(2 * float(CURVATURES[3]))]


def test_the_command(finished: Path, tmp_path: Path, command: Command) -> None:
    words = ("analyze", "rays", finished, "--points", 5, "--rays", 2, "--device", "cpu", "--out", tmp_path)
    answer = command(*words, "--json")
    assert answer.code == 0, answer.err
    [run] = json.loads(answer.out)["result"]
    assert [ray["kind"] for ray in run["rays"]] == ["sgd", "average", "random", "adversarial-train", "adversarial-test"]
    assert [ray["start"] for ray in run["rays"]] == ["epoch 3", *["epoch 4"] * 4]
    assert [ray["end"] for ray in run["rays"]][:2] == ["epoch 4", "fast-SWA"]
    assert (tmp_path / "rays.csv").read_text().count("\n") == 1 + 5 + 5 + 3 * 3
    *_, random, train, test = (np.array(ray["distance"]) / ray["distance"][-1] for ray in run["rays"])
    assert (random.tolist(), train.tolist(), test.tolist()) == ([0, 0.5, 1], [0, 0.125, 1], [0, 0.125, 1])
    assert command(*words, "--epochs", "2").err == (
        f"fastswa: {finished}: 2 iterates are needed, and one is there; train it with `--keep-every 3`, "
        "which says how often one is kept, or name more of them.\n"
    )
    assert "--batches means nothing to the study rays" in command(*words, "--batches", "3").err
    assert "a ray goes through two iterates, not 3" in command(*words, "--epochs", "2,3,4").err


def bowl(ends: tuple[float, float], errors: Iterable[float], marks: Iterable[float]) -> Ray:
    """A ray with these test errors at equal distances."""
    values = np.array([*errors])
    nothing = np.zeros_like(values)
    measured = Measured(nothing, nothing, values, nothing)
    return Ray("average", "epoch 4", "fast-SWA", np.linspace(*ends, len(values)), measured, np.array(marks), nothing)


def test_the_flat_part_of_a_ray_is_where_the_error_stays_near_its_lowest() -> None:
    """2% at the lowest, so that 3% is the border; the dip to the right of a barrier is none of it."""
    ray = bowl((-1.0, 5.0), (6, 2.5, 2, 2, 5, 8, 2.1), (0.0, 1.5))
    assert basin(ray) == (pytest.approx(-1 / 7), pytest.approx(2 + 1 / 3))
    [line] = told([Rays("run", "pi", 0, [ray], 5.0)])
    assert "are 1.5 apart (0.3 of the weights' length); test error" in line
    assert (
        "within 1% of that from -0.143 to 2.33: 2.48 wide (0.5 of the weights' length), "
        "from whose middle epoch 4 is 1.1 and fast-SWA 0.405"
    ) in line


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((9, 2, 2), "from 0.857 to 2 (where the ray ends): at least 1.14 wide (0.23 of the weights' length)"),
        ((2, 2, 9), "from 0 (where the ray begins) to 1.14: at least 1.14 wide (0.23 of the weights' length)"),
        (
            (2, 2, 2),
            "from 0 (where the ray begins) to 2 (where the ray ends): at least 2 wide (0.4 of the weights' length)",
        ),
    ],
    ids=["right", "left", "both"],
)
def test_a_flat_part_that_has_no_end_has_no_middle(errors: tuple[float, ...], said: str) -> None:
    ray = bowl((0.0, 2.0), errors, (0.0, 1.0))
    assert told([Rays("run", "pi", 0, [ray], 5.0)])[0].endswith(f"within 1% of that {said}")


def test_how_far_one_can_go_along_other_rays_is_said() -> None:
    """From 2% the error passes 3% a quarter of the way from the second point (2.5%) to the third (4.5%)."""
    ray = dataclasses.replace(bowl((0.0, 3.0), (2, 2.5, 4.5, 9), ()), kind="random", end="")
    assert told([Rays("run", "pi", 0, [ray], 5.0)]) == [
        "run: random rays from epoch 4: the test error, 2.00%, has risen by 1% at 1.25 (0.25 of the weights' length), "
        "and is 9.00% at 3"
    ]
    flat = dataclasses.replace(bowl((0.0, 3.0), (2, 2, 2.5, 2.9), ()), kind="adversarial-test", end="")
    assert told([Rays("run", "pi", 0, [flat], 5.0)]) == [
        "run: adversarial (test) rays from epoch 4: the test error stays within 1% of 2.00% up to 3 "
        "(0.6 of the weights' length)"
    ]


def test_a_rise_within_the_first_cell_is_not_told_to_be_anywhere_in_it() -> None:
    """A line from 17% to 54% would pass 18% at 0.04, of which nothing was seen."""
    steep = bowl((0.0, 30.0), (17.03, 54.14, 82.65, 89.86), ())
    ray = dataclasses.replace(steep, kind="adversarial-train", end="", distance=np.array([0.0, 1.5, 3.0, 30.0]))
    assert told([Rays("run", "pi", 0, [ray], 21.4)]) == [
        "run: adversarial (train) rays from epoch 4: the test error, 17.03%, is 54.14% at the first point, 1.5 "
        "(0.07 of the weights' length), and 89.86% at 30"
    ]


def test_rays_of_equal_steps_can_still_be_read_told_and_drawn(tmp_path: Path) -> None:
    """As they were written before adversarial rays were looked at more closely near their start."""
    rays = [
        bowl((-1.0, 2.0), (3, 2, 2, 3), (0.0, 1.0)),
        dataclasses.replace(bowl((0.0, 30.0), (2, 9, 9, 9), ()), kind="adversarial-test", end="gradient"),
    ]
    file = tmp_path / "rays.json"
    file.write_text(json.dumps(plain([Rays("run", "pi", 0, rays, 5.0)])))
    [found] = read(find_study("rays"), [file])
    assert found.rays[1].distance.tolist() == [0, 10, 20, 30]
    assert "is 9.00% at the first point, 10" in told([found])[1]
    pyplot.close(draw([found]))


def test_many_runs_are_drawn_in_rows_of_three() -> None:
    """First the kinds that there are; then each run's rays together, unless all are of one kind."""
    ray = bowl((-1.0, 2.0), (3, 2, 2, 3), (0.0, 1.0))
    both = [ray, dataclasses.replace(ray, kind="sgd")]

    def titles(rays: list[Ray], width: float, rows: int) -> list[str]:
        drawn = draw([Rays(f"run {number}", "pi", 0, rays, 5.0) for number in range(5)])
        assert drawn.get_size_inches().tolist() == pytest.approx([width, rows * 4.6])
        pyplot.close(drawn)
        return [panel.get_title() for panel in drawn.axes if panel.get_visible()]

    assert titles(both, 12.3, 3) == ["SGD-SGD rays", "SGD-SWA rays", *(f"run {n}: all rays" for n in range(5))]
    assert titles([ray], 6.5, 1) == [f"{KINDS[ray.kind]} rays"]


def test_errors_are_drawn_to_twice_the_lowest_and_it_is_said() -> None:
    def panel(*errors: float) -> tuple[str, float]:
        drawn = draw([Rays("run", "pi", 0, [bowl((0.0, 3.0), errors, (0.0, 1.0))], 5.0)])
        pyplot.close(drawn)
        return drawn.axes[1].get_ylabel(), drawn.axes[1].get_ylim()[1]

    assert panel(12, 10, 11, 90) == ("error (%), cut at 20", 20)
    assert panel(12, 10, 11, 14) == ("error (%)", pytest.approx(1.05 * 14))
    assert panel(0, 0, 0, 0)[0] == "error (%)"
