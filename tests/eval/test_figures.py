"""Figures: chosen rows, what is drawn, and files that are whole or absent."""

import colorsys
import re
import warnings

import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.eval import evaluate, mean_images
from fedre_privacy.eval.measures import Measure
from fedre_privacy.eval.report import (
    attack_trace,
    image_sheet,
    partition_picture,
    pick_rows,
    reconstruction_sheet,
    save_figure,
    training_curves,
)
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.eval.report.frontier import Point, frontier
from fedre_privacy.eval.report.matrix import Cell, matrix
from fedre_privacy.eval.report.measures import measure_chart
from fedre_privacy.eval.report.prototype_map import prototype_map
from fedre_privacy.eval.report.rounds import RoundPoint, leakage_by_rounds
from fedre_privacy.eval.report.scheme import dark_colour, scheme_svg
from fedre_privacy.eval.report.style import CYCLE
from fedre_privacy.reproduction.boundary import ClientView, decision_boundaries


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.fixture
def scored(make_truth, make_rec, public, usual):
    truth = make_truth([1, 4] * 10)
    images = mean_images(truth).clone()
    images += 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    images = images.clamp(0, 1)
    images[3] = float("nan")
    return evaluate(make_rec(images), truth, public, metrics=usual), images


@pytest.fixture
def metrics_frame():
    frame = pd.DataFrame({"round": range(1, 10)})
    frame["loss"] = 2 / frame["round"]
    frame["acc_post_local"] = (1 - 1 / frame["round"]).where(frame["round"] % 2 == 1)
    frame["acc_post_broadcast"] = 0.9 * frame["acc_post_local"]
    return frame


def test_rows_are_picked_at_even_ranks_with_best_median_and_worst():
    scores = torch.randperm(41, generator=torch.Generator().manual_seed(0)).float()
    picks = pick_rows(scores, 5)
    assert [scores[p.target].item() for p in picks] == [40, 30, 20, 10, 0]
    assert [p.label for p in picks] == ["best", "rank 11 of 41", "median", "rank 31 of 41", "worst"]
    lower = pick_rows(scores, 5, higher_is_better=False)
    assert [scores[p.target].item() for p in lower] == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 100])
@pytest.mark.parametrize("count", [3, 4, 6, 16])
def test_picks_always_hold_the_ends_and_the_middle(n, count):
    scores = torch.rand(n + 2)
    scores[1] = float("nan")
    picks = pick_rows(scores, count)
    labels = [p.label for p in picks]
    assert len(picks) == min(count, n + 1) == len({p.target for p in picks})
    assert 1 not in [p.target for p in picks]
    assert labels[0] == "best" and (n < 2 or {"median", "worst"} <= set(labels))


def test_no_rows_to_pick():
    assert pick_rows(torch.full((4,), float("nan"))) == []
    with pytest.raises(ConfigError, match="at least 3"):
        pick_rows(torch.rand(9), 2)


def test_sheet_says_what_it_shows(scored):
    scores, images = scored
    figure = reconstruction_sheet(
        scores, images, title="dip on prototypes", caption="white box, round 20",
        counterfactual="fedre", count=5,
        extra={"ceiling": scores.originals},
    )  # fmt: skip
    text = texts(figure)
    assert "COUNTERFACTUAL: not uploaded by fedre" in text
    for word in ("dip on prototypes", "white box, round 20", "recovered", "difference x4",
                 "floor:", "ceiling", "best", "median", "worst", "1 diverged", "PSNR"):  # fmt: skip
        assert word in text
    assert len(figure.axes) == 5 * 5
    plain = reconstruction_sheet(scores, images, title="t", metric="mse", count=16)
    assert "COUNTERFACTUAL" not in texts(plain) and len(plain.axes) == 16 * 4


def test_sheet_pixels_are_the_images(scored):
    scores, images = scored
    target = pick_rows(torch.tensor(scores.rows["psnr"].to_list()), 3)[0].target
    figure = reconstruction_sheet(scores, images, title="t", count=3)
    truth, recovered, difference, floor = (axes.images[0] for axes in figure.axes[:4])
    shown = torch.from_numpy(recovered.get_array().data)
    assert torch.allclose(shown, images[target, 0])
    gap = (images[target, 0] - torch.from_numpy(truth.get_array().data)).abs() * 4
    assert torch.allclose(torch.from_numpy(difference.get_array().data), gap.clamp(0, 1))
    assert torch.allclose(torch.from_numpy(floor.get_array().data), scores.floor_images[target, 0])
    assert {image.get_interpolation() for image in (truth, recovered)} == {"nearest"}
    assert recovered.get_clim() == (0, 1)


def test_sheet_refuses_what_does_not_fit(scored):
    scores, images = scored
    with pytest.raises(ConfigError, match="psnr, ssim"):
        reconstruction_sheet(scores, images, title="t", metric="lpips")
    with pytest.raises(IncompatibleError, match="'ceiling' has shape"):
        reconstruction_sheet(scores, images, title="t", extra={"ceiling": images[:3]})


@pytest.mark.filterwarnings("error")
def test_a_sheet_without_rows_is_its_title_and_caption():
    figure = image_sheet({"a": torch.zeros(0, 1, 8, 8)}, [], title="t", caption="all diverged")
    figure.canvas.draw()
    assert figure.axes == [] and [t.get_text() for t in figure.texts] == ["t", "all diverged"]


def test_image_sheet_draws_colour_and_marks_the_diverged():
    images = torch.rand(2, 3, 8, 8)
    images[1] = float("nan")
    figure = image_sheet({"a": images}, ["one\nnote", "two"], title="t")
    assert figure.axes[0].images[0].get_array().shape == (8, 8, 3)
    assert not figure.axes[1].images and figure.axes[1].texts[0].get_text() == "diverged"
    with pytest.raises(IncompatibleError, match="needed are 2 images"):
        image_sheet({"a": torch.rand(2, 2, 8, 8)}, ["x", "y"], title="t")


ODD = "$x^2$ & <b> \x1b[31m\u202e_^{\\frac"
LONG = "word " * 60


def every_figure(scored, metrics_frame):
    """Each kind of figure by its name, few and many rows, with long captions and odd names."""
    scores, images = scored
    few = {"recovered": images[:3], "a\nheading": images[:3]}
    many = {"recovered": images.repeat(2, 1, 1, 1)[:24], ODD: images.repeat(2, 1, 1, 1)[:24]}
    notes = [f"best\nclient {n}, class {ODD}\nPSNR 15.40 (floor 18.61)" for n in range(24)]
    names = [ODD, "$5", "A" * 60, *"defghij"]
    counts = torch.randint(0, 9, (12, 10), generator=torch.Generator().manual_seed(0))
    dots = tuple(Dot(n + 0.5, 0.1, 0.2, n + 9 if n % 2 else None) for n in range(24))
    columns = [Column(ODD, dots), Column("log\nscale", dots, log=True)]
    variants = [*names, *map(str, range(14))]
    points = [
        Point(name, 0.4 + 0.02 * n, 0.03, 10.0 ** (n % 5), n % 4 - 1.0, 0.3, "dip", 3)
        for n, name in enumerate(names)
    ]
    cells = [Cell(row, column, 0.5, "dB", "") for row in names for column in names[:4]]
    lines = [RoundPoint(p, ODD, r, r, 0.1) for p in (ODD, "b", "c", "d", "e") for r in (1, 5)]
    plane = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    labels, clients = [n % 11 - 1 for n in range(40)], [n // 10 for n in range(40)]
    view = ClientView(plane, torch.arange(40) % 2, lambda p: p[:, 0])
    accuracy = {
        f"acc_post_broadcast{end}": 0.6 + d for end, d in (("", 0), ("_low", -0.1), ("_high", 0.1))
    }
    bars = [Measure(key=n, title=n, value=0.5, interval=(0, 1), floor=0.2, n=9) for n in names]
    means = pd.DataFrame({"method": [ODD, "b"], "published": [0.6, None], **accuracy})
    runs = means[["method", "acc_post_broadcast"]]
    return {
        "sheet": reconstruction_sheet(scores, images, title=ODD * 9, caption=LONG, count=16),
        "ceiling": reconstruction_sheet(
            scores, images, title=ODD, count=3, extra={"ceiling": images}
        ),
        "three": image_sheet(few, notes[:3], title=ODD, caption=LONG, gap_before=1),
        "twenty-four": image_sheet(many, notes, title=ODD, caption=LONG),
        "partition": partition_picture(counts, class_names=names, title=ODD, caption=LONG),
        "trace": attack_trace(torch.arange(5), torch.rand(5, 3) + 1, title=ODD, caption=LONG),
        "curves": training_curves(metrics_frame, title=ODD, caption=LONG),
        "comparison": comparison(variants, columns, title=ODD, caption=LONG),
        "comparison of three": comparison(names[:3], [Column("a", dots[:3])], title="t"),
        "frontier": frontier(points, caption=LONG),
        "matrix": matrix(cells, caption=LONG),
        "measures": measure_chart(bars, title=ODD),
        "map": prototype_map(plane, labels, clients, class_names=names, caption=LONG),
        "rounds": leakage_by_rounds(lines, across="attacked round", caption=LONG),
        "boundary": decision_boundaries(
            {ODD: [view, view], "b": [view, view]}, means, runs, best=0.6, published_error=0.03,
            title=ODD, caption=LONG,
        ),
    }  # fmt: skip


DRAWN: dict[str, Figure] = {}


@pytest.fixture
def drawn(scored, metrics_frame):
    """Every kind of figure by its name, made and drawn once."""
    if not DRAWN:
        DRAWN.update(every_figure(scored, metrics_frame))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as a layout that found no room
            for figure in DRAWN.values():
                figure.canvas.draw()
    return DRAWN


@pytest.mark.slow
def test_nothing_drawn_lies_outside_the_page_or_on_the_caption(drawn):
    for kind, figure in drawn.items():
        canvas = figure.canvas.get_renderer()
        width, height = figure.canvas.get_width_height()
        words = [text.get_window_extent(canvas) for text in figure.texts]
        parts = [part.get_tightbbox(canvas) for part in (*figure.axes, *figure.legends)]
        for box in (*words, *parts):
            assert box.x0 >= 0 and box.y0 >= 0, kind
            assert box.x1 <= width + 1 and box.y1 <= height + 1, kind
        for box in parts:
            assert not any(box.overlaps(text) for text in words), kind
        for axes in figure.axes:
            assert axes.bbox.width > 8 and axes.bbox.height > 8, kind


@pytest.mark.slow
def test_images_and_their_notes_do_not_overlap(drawn):
    for kind in ("sheet", "ceiling", "three", "twenty-four", "boundary", "rounds", "comparison"):
        figure = drawn[kind]
        canvas = figure.canvas.get_renderer()
        parts = (*figure.axes, *figure.legends)
        boxes = [part.get_tightbbox(canvas).padded(-1) for part in parts]
        for n, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:n]), kind
        if kind in ("sheet", "three", "twenty-four"):  # images stand close together, in full size
            assert min(axes.bbox.width for axes in figure.axes) > 0.6 * figure.dpi, kind


@pytest.mark.slow
def test_names_are_drawn_letter_by_letter(drawn):
    seen = set()
    for figure in drawn.values():
        for text in figure.findobj(Text):
            if "x^2" in text.get_text() or "5" == text.get_text()[-1:]:
                shown, math = text._preprocess_math(text.get_text())  # what a renderer is given
                assert not math or "mathdefault" in shown
                seen.add(shown)
    assert not {"\x1b", "\u202e"} & set("".join(seen))
    assert "$5" in seen and any(r"$x^2$ & <b> \x1b[31m\u202e" in text for text in seen)


def test_trace_shows_median_and_quartiles():
    steps = torch.tensor([0, 10, 100])
    fit = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, float("nan")], [0.0, 0.1, 0.1, 0.2]])
    figure = attack_trace(steps, fit)
    axes = figure.axes[0]
    assert axes.get_yscale() == "log" and axes.get_xscale() == "symlog"
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([2.5, 0.2, 0.1])
    for bad in (fit[:2], torch.full((3, 2), float("nan"))):
        with pytest.raises(IncompatibleError):
            attack_trace(steps, bad)


def test_training_curves_show_both_moments(metrics_frame):
    figure = training_curves(metrics_frame, chance=0.1)
    left, right = figure.axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["after local training", "after the broadcast", "chance"]
    assert left.lines[0].get_xdata().tolist() == [1, 3, 5, 7, 9]
    assert right.lines[0].get_ydata().tolist() == pytest.approx(metrics_frame["loss"].tolist())
    seeds = pd.concat([metrics_frame, metrics_frame.assign(loss=1.0)])
    assert len(training_curves(seeds).axes[1].collections) == 1
    one_moment = training_curves(metrics_frame.drop(columns="acc_post_broadcast"))
    assert len(one_moment.axes[0].lines) == 1
    with pytest.raises(IncompatibleError, match="needed are round, loss"):
        training_curves(metrics_frame.drop(columns="loss"))


def test_partition_picture_counts_single_images():
    counts = torch.tensor([[0, 1, 30], [5, 0, 1]])
    figure = partition_picture(counts, class_names=["cat", "dog", "ship"])
    assert "2 cells" in texts(figure)
    assert {text.get_text() for text in figure.axes[0].texts} == {"1", "30", "5"}
    assert isinstance(partition_picture(torch.zeros(2, 3)), Figure)
    with pytest.raises(IncompatibleError, match="2 class names were given for 3"):
        partition_picture(counts, class_names=["a", "b"])
    with pytest.raises(IncompatibleError, match=r"\(K, C\)"):
        partition_picture(torch.zeros(3))


@pytest.mark.slow
def test_files_are_whole_and_reproducible(tmp_path, metrics_frame):
    stem = tmp_path / "deep" / "figure.v1"
    written = save_figure(training_curves(metrics_frame), stem, data=metrics_frame, dpi=60)
    names = ["figure.v1.png", "figure.v1.pdf", "figure.v1.svg", "figure.v1.csv"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in stem.parent.iterdir()) == sorted(names)
    first = [path.read_bytes() for path in written]
    assert first[0].startswith(b"\x89PNG") and first[0].rstrip().endswith(b"IEND\xaeB`\x82")
    assert first[1].startswith(b"%PDF") and first[1].rstrip().endswith(b"%%EOF")
    assert len(pd.read_csv(written[3])) == len(metrics_frame)
    save_figure(training_curves(metrics_frame), stem, data=metrics_frame, dpi=60)
    assert [path.read_bytes() for path in written] == first


def test_a_dark_colour_keeps_its_hue_and_stands_out_as_much():
    assert dark_colour("#ffffff") == "#161616" and dark_colour("#000000") == "#e9e9e9"
    for colour in CYCLE[:-1]:
        dark = dark_colour(colour)
        apart = abs(colorsys.rgb_to_hls(*to_rgb(colour))[0] - colorsys.rgb_to_hls(*to_rgb(dark))[0])
        assert min(apart, 1 - apart) < 0.1, colour
        on_white, on_dark = contrast(colour, "#ffffff"), contrast(dark, "#161616")
        assert on_dark >= min(on_white, 4.0), colour


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2.1 defines it."""
    levels = []
    for colour in (one, other):
        parts = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        ]
        levels.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
    return max(levels) / min(levels)


def test_the_svg_of_a_figure_has_both_schemes_and_marks_what_is_a_picture(metrics_frame):
    curves = scheme_svg(training_curves(metrics_frame), 60)
    assert "prefers-color-scheme:dark" in curves and "fill: #" not in curves
    assert "<script" not in curves and "http://www.w3.org/1999/xlink" in curves
    white = torch.ones(2, 1, 4, 4)
    sheet = scheme_svg(image_sheet({"a": white, "b": white}, ["x", "y"], title="t"), 60)
    marks = re.findall(r'<g id="(photo-[0-9]+)">', sheet)
    assert len(marks) == len(set(marks)) == 4


def test_a_failed_save_leaves_nothing_behind(tmp_path, metrics_frame, monkeypatch):
    figure = training_curves(metrics_frame)

    def broken(path, **kwargs):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", broken)
    with pytest.raises(OSError, match="disk full"):
        save_figure(figure, tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []


def test_leakage_is_drawn_against_rounds_with_one_panel_a_measure():
    points = [
        RoundPoint(panel, line, rounds, 0.1 * rounds, spread)
        for panel in ("PSNR (dB)", "found")
        for line, spread in (("rap", 0.2), ("vap", None))
        for rounds in (40, 5, 20)
    ]
    figure = leakage_by_rounds(points, across="attacked round", caption="Over the floor.")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["PSNR (dB)", "found"]
    for axes in figure.axes:
        assert axes.get_xlabel() == "attacked round"
        drawn = [list(bars.lines[0].get_xdata()) for bars in axes.containers]
        assert drawn == [[5, 20, 40], [5, 20, 40]]  # in order, whatever the order they came in
        assert len(axes.collections) == 1  # bars where the sd over seeds is known
    assert "Over the floor." in texts(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rap", "vap"]
    with pytest.raises(ConfigError, match="no attack was run at two"):
        leakage_by_rounds([p for p in points if p.rounds == 5], across="attacked round")


def test_of_many_points_those_that_nothing_beats_have_names(monkeypatch):
    from fedre_privacy.eval.report import frontier as module

    monkeypatch.setattr(module, "NAMED", 3)
    points = [
        module.Point(f"p{n}", 0.1 * n, None, 100.0, 1.0 if n in (1, 5) else 3.0, None, "dip", 1)
        for n in range(1, 7)
    ]
    drawn = module.frontier(points, caption="Two seeds.")
    for axes in drawn.axes[:2]:
        assert {text.get_text() for text in axes.texts} == {"p4", "p5", "p6"}
    said = " ".join(text.get_text().replace("\n", " ") for text in drawn.texts)
    assert "Two seeds. Named are 3 of the 6 points" in said


def test_the_front_of_accuracy_and_leakage_is_marked_whatever_is_sent():
    from fedre_privacy.eval.report import frontier as module

    def point(label, accuracy, over, scalars):
        return module.Point(label, accuracy, None, scalars, over, None, "linear", 1)

    points = [
        point("none", 0.8, 4.0, 10.0),
        point("strong", 0.3, -2.0, 10.0),
        point("worse and below the floor too", 0.2, -5.0, 10.0),
        point("beaten", 0.5, 3.0, 1.0),  # on the Pareto set of all three: it sends least
        point("good", 0.6, 1.0, 10.0),
        point("unknown", 0.9, None, 10.0),
    ]
    assert [p.label for p in module.front(points)] == ["strong", "good", "none"]
    drawn = module.frontier(points)
    (line,) = [one for one in drawn.axes[1].lines if one.get_label() == module.FRONT]
    assert list(line.get_xdata()) == [-2.0, 1.0, 4.0, 4.0]
    assert list(line.get_ydata()) == [0.3, 0.6, 0.8, 0.8]
