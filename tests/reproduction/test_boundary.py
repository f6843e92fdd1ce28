"""The figure shows what it is given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fedre_privacy.reproduction.boundary import ClientView, decision_boundaries


def view(probability) -> ClientView:
    points = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.5, -1.0]])
    return ClientView(points, torch.tensor([0, 1, 1]), probability)


def draw(methods, means=None):
    if means is None:
        means = pd.DataFrame(
            {
                "method": list(methods),
                "acc_post_broadcast": 0.6,
                "acc_post_broadcast_low": 0.58,
                "acc_post_broadcast_high": 0.62,
                "published": [0.635, *([None] * (len(methods) - 1))],
            }
        )
    runs = pd.DataFrame({"method": [m for m in methods for _ in range(3)],
                         "acc_post_broadcast": 0.6})  # fmt: skip
    return decision_boundaries(
        methods, means, runs, best=0.618, published_error=0.034, title="Toy", caption="c"
    )


def diagonal(points):
    return (4 * (points[:, 0] - points[:, 1])).sigmoid()


def test_predictions_are_drawn_the_right_way_round():
    figure = draw({"A": [view(diagonal), view(diagonal)], "B": [view(diagonal), view(diagonal)]})
    assert len(figure.axes) == 5
    axes = figure.axes[0]
    image = axes.images[0]
    left, right, bottom, top = image.get_extent()
    shown = np.asarray(image.get_array())
    assert image.origin == "lower"
    xs, ys = np.linspace(left, right, len(shown)), np.linspace(bottom, top, len(shown))
    for i, j in ((0, -1), (-1, 0), (10, 40)):  # row, column
        expected = diagonal(torch.tensor([[xs[j], ys[i]]], dtype=torch.float32))
        assert shown[i, j] == pytest.approx(float(expected), abs=1e-3)


def test_the_line_is_where_both_classes_are_equally_likely():
    axes = draw({"A": [view(diagonal)]}).axes[0]
    line = axes.collections[0].get_paths()[0].vertices
    assert np.abs(line[:, 0] - line[:, 1]).max() < 0.02


def test_a_constant_prediction_says_so():
    figure = draw({"A": [view(lambda points: torch.full((len(points),), 0.2))]})
    assert "class 0 everywhere" in [text.get_text() for text in figure.axes[0].texts]
