"""The spelling of a shape: what it means, and the one clear error where it means nothing."""

from __future__ import annotations

import pytest
import torch

from regard.choosing.cost.shape import EXAMPLE, KEYS, Shape, ShapeError, parse_shape


def test_the_example_is_read_and_the_rest_has_defaults() -> None:
    shape = parse_shape(EXAMPLE)
    assert (shape.d_q, shape.d_k, shape.len_q, shape.len_k, shape.heads) == (
        256,
        128,
        1024,
        1024,
        8,
    )
    assert (shape.key_heads, shape.width, shape.d_v, shape.hidden, shape.rank) == (
        8,
        64,
        64,
        16,
        16,
    )
    assert (shape.batch, shape.torch_dtype, shape.causal) == (1, torch.float32, False)


def test_projections_are_no_wider_than_what_they_project() -> None:
    shape = parse_shape("d_q=512,d_k=8,len=3")
    assert (shape.width, shape.rank, shape.d_v) == (8, 8, 8)


def test_d_k_follows_d_q_and_one_length_may_be_set_apart() -> None:
    shape = parse_shape("d_q=32, len=4_096, len_q=1, dtype=bfloat16, causal=1")
    assert (shape.d_k, shape.len_q, shape.len_k) == (32, 1, 4096)
    assert (shape.torch_dtype, shape.causal) == (torch.bfloat16, True)


@pytest.mark.parametrize("text", [EXAMPLE, "d_q=3,len_q=2,len_k=5,heads=4,key_heads=2,causal=1"])
def test_the_printed_shape_is_read_back(text: str) -> None:
    shape = parse_shape(text)
    assert parse_shape(str(shape)) == shape
    assert Shape(**shape.as_dict()) == shape  # type: ignore[arg-type] # as JSON gives it


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("d_q", "'d_q' is not key=value"),
        ("d_q=8,,len=2", "'' is not key=value"),
        ("d_q=,len=2", "'d_q=' is not key=value"),
        ("dq=8,len=2", "unknown key 'dq' in 'dq=8', did you mean 'd_q'?"),
        ("d_q=8,len=2,colour=red", "unknown key 'colour'"),
        ("d_q=8,d_q=9,len=2", "d_q is given twice: '8' and '9'"),
        ("len=2", "d_q is missing"),
        ("d_q=8", "len is missing"),
        ("d_q=8,len_q=2", "so is len_k"),
        ("d_q=0,len=2", "d_q must be a positive whole number, got '0'"),
        ("d_q=-4,len=2", "d_q must be a positive whole number, got '-4'"),
        ("d_q=1.5,len=2", "got '1.5'"),
        ("d_q=eight,len=2", "got 'eight'"),
        ("d_q=٣,len=2", "d_q must be a positive whole number"),
        (f"d_q={'9' * 5000},len=2", "d_q must be a positive whole number"),
        (f"d_q={2**41},len=2", "d_q is too large"),
        ("d_q=8,len=2,dtype=int8", "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ("d_q=8,len=2,causal=yes", "causal must be 0 or 1, got 'yes'"),
        ("d_q=8,len=2,heads=4,key_heads=3", "key_heads=3 does not divide heads=4"),
        ("d_q=8,len_q=5,len_k=3,causal=1", "causal=1 needs len_q <= len_k, got 5 and 3"),
    ],
)
def test_a_mistake_is_named_with_the_keys_and_an_example(text: str, named: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_shape(text)
    message = str(caught.value)
    assert named in message
    assert all(key in message for key in KEYS)
    assert EXAMPLE in message
    assert "\n" not in message
