"""The claims, in the order of the table. A claim is a module whose name says what it claims.

It exposes `CASES`, programs in natural and expert form, or `findings(quick)`, ratios that it measures in its own way.
"""

CLAIMS = (
    "issue_4968_examples_need_no_stack",
    "formulas_over_all_pairs_take_no_memory",
    "a_reduced_scan_output_is_never_stacked",
    "a_partly_used_scan_output_costs_what_is_used",
    "a_trajectory_seen_through_views_is_never_stacked",
    "logits_under_a_cross_entropy_are_never_built",
    "what_a_step_makes_for_several_arrays_is_computed_once",
    "two_consumers_share_one_loop",
    "map_and_fori_loop_fuse_like_scan",
    "loop_fusion_survives_its_surroundings",
    "hoisting_acts_only_where_it_pays",
    "sums_of_products_cost_their_cheapest_order",
    "gates_of_an_input_are_read_one_by_one",
    "every_vmap_order_of_matvec_costs_the_best_einsum",
    "an_inverse_in_a_product_costs_a_solve",
    "small_matrices_cost_a_few_loops",
    "a_short_last_axis_costs_what_its_entries_cost",
    "elementary_functions_are_vector_code",
    "max_pool_gradients_are_slices",
    "few_term_convolutions_are_one_loop",
    "optimising_adds_a_quarter_of_trace_and_compile",
    "two_hundred_rules_add_a_quarter_of_trace_and_compile",
    "a_warm_call_costs_what_jit_costs",
    "a_module_crosses_jit_for_what_its_list_costs",
    "a_module_crosses_faster_than_elsewhere",
    "a_sort_costs_what_a_sort_of_integers_costs",
    "an_argmax_costs_a_reduction",
    "a_cumulative_sum_takes_few_passes",
    "a_call_returns_before_it_has_computed",
    "an_object_costs_what_a_class_costs",
    "an_edit_costs_what_tree_at_costs",
    "examples_never_slower",
)
