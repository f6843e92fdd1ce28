"""The README's first command says the same in words, whatever the seed."""

import re

import pytest

WORDS = re.compile(
    r"LEAKS      the (\d+) prototypes of one image: (\d+) of \1 found among 100 "
    r"\(guess [\d.]+ %\), pictures [\d.]+ dB over the floor; shown for "
)
FINDING = re.compile(r"^(LEAKS|NO EVIDENCE|NOT EXPLAINED|INCONCLUSIVE)\b", re.M)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_first_result_is_the_same_in_words_for_every_seed(cli, tmp_path, seed):
    told = cli.attack(
        "--protocol", "fedre", "--target", "prototypes", "--set", f"train.seed={seed}",
        "--runs-dir", tmp_path,
    )  # fmt: skip
    assert told.code == 0, told.err
    assert FINDING.findall(told.out) == ["LEAKS"]
    said = WORDS.search(told.out)
    assert said, told.out
    attacked, found = map(int, said.groups())
    assert attacked >= 6 and found >= attacked - 1
