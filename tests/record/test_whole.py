"""Arguments of operations that are recorded whole."""

from __future__ import annotations

from lightning_predict.record.signatures import ATTENTION, WHOLE_OPERATIONS, backward_name, computes, whole_arguments

TENSOR, PLAIN = True, False


def test_attention_has_its_defaults_and_says_whether_there_is_a_mask() -> None:
    assert whole_arguments(ATTENTION, ["q", "k", "v"], is_tensor=[TENSOR] * 3) == {
        "dropout_p": 0.0,
        "is_causal": False,
        "enable_gqa": False,
        "attn_mask": False,
    }
    full = whole_arguments(
        ATTENTION,
        ["q", "k", "v", "mask", 0.1, False, 0.5, True],
        is_tensor=[TENSOR, TENSOR, TENSOR, TENSOR, PLAIN, PLAIN, PLAIN, PLAIN],
    )
    assert full == {"dropout_p": 0.1, "is_causal": False, "scale": 0.5, "enable_gqa": True, "attn_mask": True}


def test_a_packed_sequence_is_told_from_a_padded_one() -> None:
    padded = whole_arguments(
        "aten::gru", ["input", "h", ["w"], True, 2, 0.0, True, False, True], is_tensor=[TENSOR] * 3 + [PLAIN] * 6
    )
    assert padded == {
        "has_biases": True,
        "num_layers": 2,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "batch_first": True,
    }
    packed = whole_arguments(
        "aten::gru", ["data", "sizes", "h", ["w"], True, 2, 0.0, True, False], is_tensor=[TENSOR] * 4 + [PLAIN] * 5
    )
    assert packed == {
        "has_biases": True,
        "num_layers": 2,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "packed": True,
    }


def test_backward_passes_have_names_of_their_own() -> None:
    names = {backward_name(name) for name in WHOLE_OPERATIONS}
    assert len(names) == len(WHOLE_OPERATIONS)
    assert names.isdisjoint(WHOLE_OPERATIONS)


def test_parts_that_compute_are_told_from_parts_that_move() -> None:
    assert computes("aten::_scaled_dot_product_flash_attention_for_cpu")
    assert computes("aten::_cudnn_rnn")
    assert not computes("aten::transpose")
