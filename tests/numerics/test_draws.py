"""Counter-based random numbers against published values and chance; the inverse CDF on numbers worked out by hand."""

import torch

from rpeg.numerics.draws import as_int64, choose_tokens, seed_streams, uniforms

CPU = torch.device("cpu")
QUANTILE_999 = {15: 37.70, 63: 103.44}
"""Chi-square quantiles at 99.9 % by degrees of freedom, from a table."""


def test_splitmix64_reproduces_its_published_outputs():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    drawn = uniforms(torch.tensor([[1234567]]), torch.arange(4).unsqueeze(0))
    assert drawn.tolist() == [[(output >> 40) / 2**24 for output in published]]


def test_numbers_depend_on_seed_and_position_only():
    streams = seed_streams([3, 4, 5], CPU).unsqueeze(1)
    together = uniforms(streams, torch.arange(8).expand(3, 8))
    alone = uniforms(streams[1:2], torch.tensor([[6]]))
    assert together[1, 6] == alone.item()
    assert len(together.flatten().unique()) == 24


def test_seeds_are_any_integers():
    assert seed_streams([2**64 - 1, 5 + 2**64], CPU).tolist() == seed_streams([-1, 5], CPU).tolist()
    assert seed_streams([2**63], CPU).dtype == torch.int64
    assert [as_int64(number) for number in (-1, 2**63 - 1, 2**63, 2**64 + 5)] == [-1, 2**63 - 1, -(2**63), 5]


def test_neighbouring_seeds_give_uniform_and_uncorrelated_numbers():
    drawn = uniforms(seed_streams(range(2000), CPU).unsqueeze(1), torch.arange(16).expand(2000, 16))
    assert 0 <= drawn.min()
    assert drawn.max() < 1
    counts = torch.histc(drawn, bins=16, min=0, max=1)
    assert ((counts - 2000) ** 2 / 2000).sum() < QUANTILE_999[15]
    for other in (drawn.roll(1, 0), drawn.roll(1, 1)):  # the next seed, the next position
        assert abs(torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1]) < 0.02


def test_inverse_cdf_by_hand():
    probabilities = torch.tensor([0.25, 0.0, 0.5, 0.25])
    numbers = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 1 - 2**-24])
    for scale in (1.0, 0.5):  # a sum other than 1 changes nothing
        chosen = choose_tokens(probabilities.expand(6, 4) * scale, numbers)
        assert chosen.tolist() == [0, 0, 2, 2, 3, 3]


def test_impossible_tokens_at_both_ends_are_never_chosen():
    probabilities = torch.tensor([[0.0, 0.3, 0.7, 0.0]]).expand(2, 4)
    assert choose_tokens(probabilities, torch.tensor([0.0, 1 - 2**-24])).tolist() == [1, 2]


def test_probabilities_that_are_not_numbers_give_a_valid_id():
    assert choose_tokens(torch.full((1, 4), torch.nan), torch.tensor([0.5])).item() in range(4)


def test_chosen_tokens_follow_their_probabilities():
    torch.manual_seed(0)
    probabilities = torch.randn(64).softmax(-1)
    numbers = uniforms(seed_streams(range(20_000), CPU).unsqueeze(1), torch.zeros(20_000, 1, dtype=torch.int64))
    counts = choose_tokens(probabilities.expand(20_000, 64), numbers.squeeze(1)).bincount(minlength=64)
    expected = probabilities * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < QUANTILE_999[63]
