"""The page's numbers and verdicts, from tables whose truth is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

from experiments import geodesic_page as page

METHODS = (*page.FEDERATED, *page.CENTRAL, *page.CONTROLS)


def units(auroc, sets=page.SETS):
    """Rows of two seeds and two classes; ``auroc(data, alpha, method)`` is their mean."""
    rows = []
    for name, alpha, method in itertools.product(sets, page.ALPHAS, METHODS):
        if method in (*page.CENTRAL, *page.CONTROLS[1:]) and alpha != "iid":
            continue
        for seed, unit in itertools.product((0, 1), "ab"):
            value = auroc(name, alpha, method) + 0.01 * (2 * seed - 1) + 0.03 * (1 if unit == "a" else -1)
            rows.append(
                {"data": name, "alpha": alpha, "method": method, "seed": seed, "unit": unit, "auroc": value}
            )
    return pd.DataFrame(rows)


def test_both_spreads_are_kept_apart():
    table = page.summary(units(lambda *_: 0.8))
    row = table.loc["iris", "0.1", "Geodesic (OS)"]
    assert row["auroc"] == pytest.approx(80)
    assert row["auroc seeds"] == pytest.approx(2 / np.sqrt(2))  # of 79 and 81
    assert row["auroc classes"] == pytest.approx(6 / np.sqrt(2))  # of 83 and 77
    assert page.cell(row, "auroc") == "80.0±1.4 (4.2)"


def test_what_trains_on_pooled_rows_repeats_its_iid_value():
    table = page.summary(units(lambda name, alpha, method: 0.7 if method == "Mahalanobis" else 0.8))
    assert [table["auroc"]["adult", alpha, "Mahalanobis"] for alpha in page.ALPHAS] == pytest.approx([70] * 4)


def test_a_set_without_every_skew_is_left_out():
    part = units(lambda *_: 0.8, sets=("iris", "adult"))
    part = part[(part["data"] == "iris") | (part["alpha"] != "0.1")]
    assert page.sets_of(page.summary(part)) == ["iris"]


def marks(auroc, sets=page.SETS):
    return [line.split("**")[1] for line in page.claims(page.summary(units(auroc, sets)))]


def holding(name, alpha, method):
    return 0.7 if method in page.TREES else 0.9


def test_claims_hold_when_they_do():
    assert marks(holding) == ["holds", "holds", "holds"]


def test_each_claim_can_fail_in_part_and_as_a_whole():
    def lost(sets, alphas, method, by):
        return lambda n, a, m: holding(n, a, m) - by * (n in sets and a in alphas and m == method)

    assert marks(lost(["iris"], ["0.1"], "Geodesic (Iter)", 0.016))[0] == "holds in part"
    assert marks(lost(page.SETS, ["0.1"], "Geodesic (Iter)", 0.016))[0] == "does not hold"
    assert marks(lost(page.SETS, ["0.1"], "Geodesic (Iter)", 0.014))[0] == "holds"
    assert marks(lost(page.SETS, ["0.5"], "Geodesic (OS)", 0.007))[1] == "holds in part"
    assert (
        marks(lost(page.SETS, ["iid", "0.5"], "Geodesic (OS)", -0.007))[1] == "does not hold"
    )  # no match, though better
    assert marks(lost(["covertype"], ["iid"], "Fed-Forest", -0.11))[2] == "holds in part"
    assert marks(lambda *_: 0.9)[2] == "does not hold"
    assert marks(holding, sets=("iris",))[2] == "not measured"


def test_agreement_allows_the_papers_spread_or_two_points():
    paper = page.paper_table()
    table = page.summary(units(lambda *_: 0.9))
    near = page.agreement(table, paper).set_index(["data", "method", "skew"])
    titanic = near.loc["titanic", "Geodesic (Iter)", "IID"]
    assert titanic["paper"] == 74.9
    assert titanic["allowed"] == 2.0  # its sd is 1.4
    assert not titanic["within"]
    iris = near.loc["iris", "Geodesic (Iter)", "IID"]
    assert iris["allowed"] == 9.2
    assert iris["within"]  # 90.0 against 90.5


def test_the_papers_table_is_whole():
    paper = page.paper_table()
    assert len(paper) == 5 * (2 + 7 * 2) * 5  # sets, centralised once and federated twice, metrics
    assert not paper.index.to_frame().isna().any().any()
    assert paper.loc["covertype", "0.5", "FedAvg (MLP)", "auroc"].tolist() == [91.7, 9.25]
