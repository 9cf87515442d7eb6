"""quantize --scales four-six makes the bytes of ModelOpt's four_over_six, and those of the same choice with compressed-tensors' functions."""

import four_six
import pytest


@pytest.mark.parametrize("made, dialect", [(four_six.modelopt, "modelopt"), (four_six.compressed_tensors, "compressed-tensors")])
def test_scales_and_codes(made, dialect):
    """A few groups are so close to a tie that the order of FP32 sums decides. Seed 3 has FP32 weights."""
    counts = [four_six.count(made, dialect, seed) for seed in (1, 3)]
    assert sum(groups for groups, _ in counts) == 65536 and sum(others for _, others in counts) <= 8
