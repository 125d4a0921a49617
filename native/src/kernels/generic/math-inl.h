// Elementary functions over sixteen lanes (docs/numerics.md).
// simd.h.
#pragma once

namespace sparseflow {
namespace {

// exp(x): n = x / ln 2 rounded by adding 1.5 * 2^23, r = x - n ln 2 in two fused steps, a
// polynomial of degree 6 and 2^n in two factors, so that results near overflow and the rounding to
// infinity come out right.
SPARSEFLOW_INLINE F32 exp_lanes(F32 x) {
  const F32 magic = set(0x1.8p23F);
  const F32 shifted = fma(x, set(0x1.715476p+0F), magic);
  const F32 n = sub(shifted, magic);
  F32 r = fma(n, set(-0x1.62e4p-1F), x);
  r = fma(n, set(-0x1.7f7d1cp-20F), r);
  F32 p = set(0x1.6a23ccp-10F);
  p = fma(p, r, set(0x1.123a2p-7F));
  p = fma(p, r, set(0x1.5558f2p-5F));
  p = fma(p, r, set(0x1.555492p-3F));
  p = fma(p, r, set(0x1.fffffcp-2F));
  p = fma(p, r, set(1.0F));
  p = fma(p, r, set(1.0F));
  const I32 exponent = sub(bits(shifted), set_int(0x4B400000));
  const I32 half = shift_right<1>(exponent);
  const I32 bias = set_int(127);
  p = mul(p, from_bits(shift_left<23>(add(half, bias))));
  p = mul(p, from_bits(shift_left<23>(add(sub(exponent, half), bias))));
  p = select(greater(set(-87.3F), x), zero(), p);
  return select(greater(x, set(89.0F)), set(__builtin_inff()), p);
}

// log(1 + y) for y >= 0: u = fl(1 + y) = 2^k m with m in [sqrt(1/2), sqrt(2)), and the rounding
// error of u as y's rest.
SPARSEFLOW_INLINE F32 log1p_lanes(F32 y) {
  const F32 one = set(1.0F);
  const F32 u = add(one, y);
  const F32 rest = select(greater(y, one), sub(one, sub(u, y)), sub(y, sub(u, one)));
  const I32 scaled = add(bits(u), set_int(0x3F800000 - 0x3F3504F3));
  const F32 k = to_float(sub(shift_right<23>(scaled), set_int(127)));
  const F32 m = from_bits(add(bit_and(scaled, set_int(0x007FFFFF)), set_int(0x3F3504F3)));
  const F32 f = sub(m, one);
  const F32 s = div(f, add(set(2.0F), f));
  const F32 z = mul(s, s);
  F32 p = set(0x1.31e33cp-2F);
  p = fma(p, z, set(0x1.995eb8p-2F));
  p = fma(p, z, set(0x1.55557ap-1F));
  const F32 half_square = mul(set(0.5F), mul(f, f));
  const F32 low = fma(k, set(0x1.7f7d1cp-20F), div(rest, u));
  const F32 correction = fma(s, fma(p, z, half_square), low);
  return fma(k, set(0x1.62e4p-1F), sub(f, sub(half_square, correction)));
}

SPARSEFLOW_INLINE F32 sigmoid_lanes(F32 x) {
  return div(set(1.0F), add(set(1.0F), exp_lanes(sub(zero(), x))));
}
SPARSEFLOW_INLINE F32 silu_lanes(F32 x) { return mul(x, sigmoid_lanes(x)); }
SPARSEFLOW_INLINE F32 softplus_lanes(F32 x) {
  return select(greater(x, set(20.0F)), x, log1p_lanes(exp_lanes(x)));
}

}  // namespace
}  // namespace sparseflow
