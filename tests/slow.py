"""Tests that `make test` leaves to `make test-full`: what they try, a quicker one beside them tries too.

`make test` has six minutes on two cores. What is slow by itself is marked where it stands; here are
variants of tests, by patterns of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate

# Options of scores whose plain form stays; they differ in a line or two.
VARIANTS = (
    "additive bias norm", "clipped keys scaled_dot", "cosine fixed", "gatv2 bias", "gaussian fixed",
    "layer normalised scaled_dot", "projected scaled_dot", "rms normalised bilinear", "soft capped dot",
    "soft capped gatv2", "tempered additive", "tempered gaussian", "unit keys dot",
)  # fmt: skip
# In every dtype stay dot, bilinear and additive, which all others are lowered like.
IN_FP32 = ("cosine", "gat", "gatv2", "gaussian", "scaled_dot")
# Scores made of these stay in fp64: every option and one mask of every kind. In fp32 they come with all
# masks and lengths, which those that they are made of have too.
IN_FP64 = ("bilinear unequal", "low_rank", "projected additive")
SLOW = (
    *(f"tests/contract/test_contract.py::*({name}-*" for name in VARIANTS),
    *(
        f"tests/contract/test_contract.py::test_contract({name}-{dtype})"
        for name in IN_FP32
        for dtype in ("fp16", "bf16", "fp64")
    ),
    *(
        f"tests/contract/test_contract.py::test_contract({name}-{dtype})"
        for name in IN_FP64
        for dtype in ("fp16", "bf16", "fp32")
    ),
    "tests/engines/triton/test_contract.py::test_contract(scaled_dot, fp32*",
    "tests/engines/triton/test_contract.py::test_contract(gaussian*",
    "tests/engines/triton/test_contract.py::test_contract(soft capped*",
    "tests/engines/triton/test_contract.py::test_contract(additive bias norm*",
    "tests/engines/triton/test_contract.py::test_contract(gatv2*",
    "tests/engines/triton/test_contract.py::test_contract(additive, fp32, segments, one sink*",
    "tests/engines/triton/test_contract.py::test_contract(additive, fp32, window, softcap*",
    "tests/engines/triton/test_contract.py::test_contract(additive, fp16, dense, temperature*",
    # The kernels themselves run on a GPU too, with all of these.
    "tests/engines/triton/test_nan.py::test_hidden_garbage_is_not_read(gatv2*",
    "tests/engines/triton/test_nan.py::test_gradients_where_something_is_nan(*fixed order)",
    "tests/engines/triton/test_calls.py::test_a_fixed_*",
    "tests/engines/triton/test_split.py::test_any_number_of_parts(window)",
    "tests/engines/triton/test_calls.py::test_operands_and_gradients_in_every_layout*",
    "tests/engines/triton/test_decode.py::test_parts_that_are_hidden*",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype1-*",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype0-*s*",
    "tests/engines/triton/test_bound.py::test_so_are_those_of_gatv2_and_of_few_queries(*-7-*",
    "tests/engines/triton/test_bound.py::test_so_are_those_of_gatv2_and_of_few_queries(lengths-16-*",
    "tests/engines/triton/test_bound.py::test_so_are_those_of_gatv2_and_of_few_queries(none-16-dtype1)",
    "tests/engines/triton/test_bound.py::test_a_v_that_all_heads_share_*-3)",
    "tests/engines/triton/test_bound.py::test_the_output_alone_has_the_same_bits(*-dtype1)",
    "tests/engines/triton/test_bound.py::test_the_output_alone_has_the_same_bits(lengths-20-dtype0)",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype2-window)",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype2-lengths)",
    "tests/engines/triton/test_nan.py::test_hidden_garbage_is_not_read(additive-dtype1-*",
    "tests/engines/triton/test_nan.py::test_nan_reaches_the_rows_that_see_it_alone(additive-dtype1-*",
    "tests/engines/triton/test_behind.py::test_where_the_flag_is_not_set*-dtype1)",
    "tests/engines/triton/test_lanes.py::test_a_refused_kernel_is_run_again*(200)",
    "tests/engines/triton/test_nan.py::test_gradients_where_something_is_nan(additive-dtype2-query*",
    "tests/engines/triton/test_nan.py::test_gradients_where_something_is_nan(additive-dtype2-key*",
    *(
        f"tests/engines/triton/test_repeats.py::test_a_repetition_gives_what_the_whole_way_gives({name})"
        for name in (
            "few queries, keys in parts",
            "half",
            "LeakyReLU",
            "no head dim",
            "one sequence",
            "shared keys",
        )
    ),
    "tests/engines/triton/test_repeats.py::test_scores_that_change_queries_or_keys_*(weight norm)",
    "tests/engines/triton/test_repeats.py::test_scores_that_change_queries_or_keys_*(projected)",
    "tests/engines/triton/test_repeats.py::test_a_checkpoint_runs_the_same_way_again(2)",
    "tests/engines/triton/test_decode.py::test_gradients_have_the_same_bits_in_every_call(many heads)",
    "tests/engines/triton/test_decode.py::test_gradients_have_the_same_bits_in_every_call(many blocks)",
    "tests/engines/triton/test_decode.py::test_large_scores_have_the_weights_of_the_forward(*-2)",
    "tests/engines/triton/test_decode.py::test_large_scores_have_the_weights_of_the_forward(dropout-9)",
    "tests/engines/triton/test_lanes.py::test_gradients_of_padded_memory(False-*)",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype2-both lengths)",
    "tests/engines/triton/test_bound.py::test_results_are_those_of_ordinary_launches(dtype2-causal)",
    "tests/engines/triton/test_repeats.py::test_options_go_the_whole_way(*temperature*)",
    "tests/engines/triton/test_repeats.py::test_options_go_the_whole_way(soft cap)",
    "tests/engines/triton/test_repeats.py::test_options_go_the_whole_way(*reference*)",
    "tests/engines/triton/test_repeats.py::test_a_checkpoint_runs_the_same_way_again(3)",
    "tests/engines/triton/test_repeats.py::test_under_checkpointing_and_hooks_on_what_is_saved(True)",
    "tests/engines/sine_features/test_gpu_operator.py::test_output_and_gradients(8*",
    "tests/engines/sine_features/test_gpu_operator.py::test_values_of_any_size*",
    "tests/engines/sine_features/test_gpu_operator.py::test_small_gradients_do_not_vanish(8*",
    "tests/engines/sine_features/test_gpu_operator.py::test_it_compiles_whole*",
    "tests/engines/sine_features/test_gpu_operator.py::test_opcheck*",
    "tests/engines/sine_features/test_gpu_features.py::test_gradients_are_those_of_the_lowering*",
    "tests/compile/test_compile.py::test_fullgraph_on_triton*",
    "tests/compile/test_compile.py::test_fullgraph_with_dynamic_lengths(temperatures)",
    "tests/compile/test_compile.py::test_fullgraph_with_dynamic_lengths(projected)",
    "tests/compile/test_compile.py::test_fullgraph_with_dynamic_lengths(statistics)",
    "tests/compile/test_compile.py::test_fullgraph_with_dynamic_lengths(inner on cpu)",
    # Inductor compiles it too.
    "tests/compile/test_compile.py::test_fullgraph_with_dynamic_lengths(additive ragged)",
    "tests/compile/test_compile.py::test_grouped_heads*",
    "tests/compile/test_compile.py::test_inductor(inner*",
    "tests/compile/test_compile.py::test_a_mask_from_outside_the_compiled_function(inner*",
    "tests/compile/test_compile.py::test_empty_inputs_under_compile*",
    "tests/compile/test_compile.py::test_values_narrower_and_wider_than_keys*",
    "tests/compile/test_ops.py::test_opcheck_of_triton",
    "tests/contract/test_contract.py::test_derivatives_match_difference_quotients(*gat*",
    "tests/contract/test_contract.py::test_derivatives_match_difference_quotients(*projected*",
    "tests/nn/test_blocks_torch.py::test_training_and_steps_compile_in_one_graph*",
    "tests/nn/test_graph_tools.py::test_compiles_in_one_graph_for_any_number_of_edges*",
    "tests/nn/test_multihead_tools.py::test_an_encoder_layer_in_evaluation_compiles*",
    "tests/nn/test_seq2seq_torch.py::test_a_step_compiles_as_one_graph*",
    "tests/integrations/test_transformers_layers.py::test_compiled_model_gives_the_same*",
    "tests/docs/test_examples.py::test_example(bahdanau_translation)",
    "tests/docs/test_examples.py::test_example(doctor)",
    "tests/docs/test_examples.py::test_example(drop_in_encoder)",
    "tests/docs/test_examples.py::test_example(huggingface_additive)",
    "tests/docs/test_examples.py::test_example(tiny_decoder)",
    "tests/bench/test_command.py::test_it_runs_with_torch_alone",
    "tests/bench/test_gpu_times.py::test_heavy_candidates_run_with_as_many_heads*",
    "tests/claims/test_cli_claims.py::test_an_output_that_is_full_is_one_message*",
    "tests/claims/test_registry.py::test_measuring_and_judging_need_no_matplotlib",
    "tests/claims/test_report_browser.py::test_the_committed_results*",
    "tests/claims/test_report_browser.py::test_dark*",
    "tests/claims/test_report_browser.py::test_it_prints",
    "tests/claims/test_report_browser.py::test_letters_fit_that_the_writer_had_no_font_for*",
    "tests/claims/test_runner.py::test_processes_side_by_side",
    "tests/choosing/test_choose_run.py::test_steps_fit_the_time",
    "tests/choosing/test_choose_run.py::test_two_processes_share_one_study",
    "tests/play/test_page.py::test_dark_and_reduced_motion*",
    "tests/doctor/test_command.py::test_an_ill_example_is_found_ill(growing*",
    "tests/doctor/test_compiled.py::test_compiled_before(eager*",
    "tests/doctor/test_waiting.py::test_a_full_workspace_is_finished_first(cpu)",
)
# One expression for all: 12,000 names against one pattern after another take 0.6 s in each process.
ANY_SLOW = re.compile("|".join(translate(pattern) for pattern in SLOW))


def is_slow(name: str) -> bool:
    """Whether a test, by its full name, is left to `make test-full`."""
    return ANY_SLOW.match(bracketed(name)) is not None


def unused(names: Iterable[str]) -> list[str]:
    """Patterns that no test answers to any more."""
    plain = [bracketed(name) for name in names]
    return [pattern for pattern in SLOW if not any(fnmatchcase(x, pattern) for x in plain)]


def bracketed(name: str) -> str:
    """With round brackets: square ones mean something in patterns."""
    return name.replace("[", "(").replace("]", ")")
