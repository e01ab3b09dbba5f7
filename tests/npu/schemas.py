"""The schemas of torch_npu's operators that the back end calls, as torch_npu 2.13.0 has them.

`test_torch_npu.py` compares them with the real package; without it they let the operators of
`operators` be called as the real ones are.
"""

from typing import Final

SCHEMAS: Final = {
    "npu_add_rms_norm": (
        "npu::npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma,"
        " float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor, Tensor)"
    ),
    "npu_add_rms_norm_dynamic_quant": (
        "npu::npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *,"
        " Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None,"
        " float epsilon=9.9999999999999995e-07, bool[2]? output_mask=None, int? y_dtype=None)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
    "npu_add_rms_norm_quant": (
        "npu::npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1,"
        " Tensor? zero_points1, Tensor? beta=None, Tensor? scales2=None,"
        " Tensor? zero_points2=None, *, int axis=-1, float epsilon=9.9999999999999995e-07,"
        " bool div_mode=True, int? dst_type=None) -> (Tensor, Tensor, Tensor)"
    ),
    "npu_dequant_swiglu_quant": (
        "npu::npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None,"
        " Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None,"
        " Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=False,"
        " int quant_mode=0, int? dst_type=None, int? round_mode=None, int? activate_dim=None,"
        " int swiglu_mode=0, float clamp_limit=7., float glu_alpha=1.702, float glu_bias=1.)"
        " -> (Tensor, Tensor)"
    ),
    "npu_dynamic_quant": (
        "npu::npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None,"
        ' Tensor? group_index=None, int? dst_type=None, str quant_mode="pertoken",'
        " float dst_type_max=0.) -> (Tensor, Tensor)"
    ),
    "npu_fused_infer_attention_score": (
        "npu::npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *,"
        " Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None,"
        " SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None,"
        " Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None,"
        " Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None,"
        " Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None,"
        " Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None,"
        " Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None,"
        " Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None,"
        " SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None,"
        " Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.,"
        ' int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH",'
        " int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0,"
        " int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0,"
        " bool softmax_lse_flag=False) -> (Tensor, Tensor)"
    ),
    "npu_mm_all_reduce_base": (
        'npu::npu_mm_all_reduce_base(Tensor x1, Tensor x2, str hcom, *, str reduce_op="sum",'
        " Tensor? bias=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None,"
        " Tensor? x3=None, Tensor? dequant_scale=None, Tensor? pertoken_scale=None,"
        " Tensor? comm_quant_scale_1=None, Tensor? comm_quant_scale_2=None,"
        " int antiquant_group_size=0, int comm_turn=0, int[]? group_sizes=None,"
        " int? y_dtype=None, int? x1_dtype=None, int? x2_dtype=None,"
        " int? dequant_scale_dtype=None, int? pertoken_scale_dtype=None, int comm_quant_mode=0,"
        " str? comm_mode=None) -> Tensor"
    ),
    "npu_quant_matmul": (
        "npu::npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None,"
        " Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None,"
        " int? x1_dtype=None, int? x2_dtype=None, int? pertoken_scale_dtype=None,"
        " int? scale_dtype=None, int[]? group_sizes=None, Tensor? y_scale=None) -> Tensor"
    ),
    "npu_quantize": (
        "npu::npu_quantize(Tensor input, Tensor scales, Tensor? zero_points, int dtype,"
        " int axis=1, bool div_mode=True) -> Tensor"
    ),
    "npu_rms_norm": (
        "npu::npu_rms_norm(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07)"
        " -> (Tensor, Tensor)"
    ),
    "npu_rotary_mul": (
        'npu::npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half",'
        " Tensor? rotate=None) -> Tensor"
    ),
    "npu_scatter_pa_kv_cache": (
        "npu::npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache,"
        " Tensor(b!) value_cache, Tensor slot_mapping, *, Tensor? compress_lens=None,"
        ' Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, str? cache_mode="PA_NZ")'
        " -> ()"
    ),
    "npu_swiglu": "npu::npu_swiglu(Tensor input, int dim=-1) -> Tensor",
}
