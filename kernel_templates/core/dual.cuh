// Dual numbers: a value and its derivative by one variable, carried through arithmetic
// (forward-mode differentiation; Griewank, Walther, "Evaluating Derivatives", 2008, chapter 3). The
// Scalar of score policies in a backward pass.
//
// There is no conversion to float, so that no derivative is lost unseen: a rule that needs the bare
// number says `score.value`. Comparisons look at values. Where a function has a corner (fabsf,
// fmaxf) the derivative is that of the side that was taken.
#ifndef TILEWRIGHT_CORE_DUAL_CUH_
#define TILEWRIGHT_CORE_DUAL_CUH_

#include "core/math.cuh"

// The C functions by their own names, which snippets use: NVRTC has them built in, on the host they
// come from the includer's <cmath>.
#ifdef __CUDACC__
#define TILEWRIGHT_C_FUNCTION(name) ::name
#else
#define TILEWRIGHT_C_FUNCTION(name) __builtin_##name
#endif

namespace tilewright {

struct Dual {
  float value;
  float derivative;

  // From whatever becomes a float: numbers, and elements of 8 and 16 bits.
  template <class Number>
  TILEWRIGHT_HOST_DEVICE Dual(Number value) : value(static_cast<float>(value)), derivative(0) {}
  TILEWRIGHT_HOST_DEVICE Dual(float value, float derivative)
      : value(value), derivative(derivative) {}

  // Friends, found by their argument only: they must not hide the functions of float.
  friend TILEWRIGHT_HOST_DEVICE Dual operator+(Dual a, Dual b) {
    return {a.value + b.value, a.derivative + b.derivative};
  }
  friend TILEWRIGHT_HOST_DEVICE Dual operator-(Dual a, Dual b) {
    return {a.value - b.value, a.derivative - b.derivative};
  }
  friend TILEWRIGHT_HOST_DEVICE Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.derivative * b.value + a.value * b.derivative};
  }
  friend TILEWRIGHT_HOST_DEVICE Dual operator/(Dual a, Dual b) {
    const float quotient = a.value / b.value;
    return {quotient, (a.derivative - quotient * b.derivative) / b.value};
  }
  friend TILEWRIGHT_HOST_DEVICE Dual operator-(Dual a) { return {-a.value, -a.derivative}; }
  friend TILEWRIGHT_HOST_DEVICE Dual operator+(Dual a) { return a; }
  TILEWRIGHT_HOST_DEVICE Dual& operator+=(Dual b) { return *this = *this + b; }
  TILEWRIGHT_HOST_DEVICE Dual& operator-=(Dual b) { return *this = *this - b; }
  TILEWRIGHT_HOST_DEVICE Dual& operator*=(Dual b) { return *this = *this * b; }
  TILEWRIGHT_HOST_DEVICE Dual& operator/=(Dual b) { return *this = *this / b; }

  friend TILEWRIGHT_HOST_DEVICE bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend TILEWRIGHT_HOST_DEVICE bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend TILEWRIGHT_HOST_DEVICE bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  friend TILEWRIGHT_HOST_DEVICE bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend TILEWRIGHT_HOST_DEVICE bool operator==(Dual a, Dual b) { return a.value == b.value; }
  friend TILEWRIGHT_HOST_DEVICE bool operator!=(Dual a, Dual b) { return a.value != b.value; }

  // f(a) from f and f' at a.
  TILEWRIGHT_HOST_DEVICE Dual Chain(float f, float slope) const { return {f, slope * derivative}; }

  friend TILEWRIGHT_HOST_DEVICE Dual tanhf(Dual a) {
    const float t = TILEWRIGHT_C_FUNCTION(tanhf)(a.value);
    return a.Chain(t, 1 - t * t);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual expf(Dual a) {
    const float e = TILEWRIGHT_C_FUNCTION(expf)(a.value);
    return a.Chain(e, e);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual exp2f(Dual a) {
    const float e = TILEWRIGHT_C_FUNCTION(exp2f)(a.value);
    return a.Chain(e, e * kLn2);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual expm1f(Dual a) {
    const float e = TILEWRIGHT_C_FUNCTION(expm1f)(a.value);
    return a.Chain(e, e + 1);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual logf(Dual a) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(logf)(a.value), 1 / a.value);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual log2f(Dual a) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(log2f)(a.value), kLog2OfE / a.value);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual log1pf(Dual a) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(log1pf)(a.value), 1 / (1 + a.value));
  }
  friend TILEWRIGHT_HOST_DEVICE Dual sqrtf(Dual a) {
    const float root = TILEWRIGHT_C_FUNCTION(sqrtf)(a.value);
    return a.Chain(root, 0.5f / root);
  }
  friend TILEWRIGHT_HOST_DEVICE Dual sinf(Dual a) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(sinf)(a.value), TILEWRIGHT_C_FUNCTION(cosf)(a.value));
  }
  friend TILEWRIGHT_HOST_DEVICE Dual cosf(Dual a) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(cosf)(a.value), -TILEWRIGHT_C_FUNCTION(sinf)(a.value));
  }
  friend TILEWRIGHT_HOST_DEVICE Dual erff(Dual a) {
    constexpr float kTwoOverRootPi = 1.12837916709551257390f;
    return a.Chain(TILEWRIGHT_C_FUNCTION(erff)(a.value),
                   kTwoOverRootPi * TILEWRIGHT_C_FUNCTION(expf)(-a.value * a.value));
  }
  friend TILEWRIGHT_HOST_DEVICE Dual powf(Dual a, float exponent) {
    return a.Chain(TILEWRIGHT_C_FUNCTION(powf)(a.value, exponent),
                   exponent * TILEWRIGHT_C_FUNCTION(powf)(a.value, exponent - 1));
  }
  friend TILEWRIGHT_HOST_DEVICE Dual fabsf(Dual a) { return a.value < 0 ? -a : a; }
  friend TILEWRIGHT_HOST_DEVICE Dual fmaxf(Dual a, Dual b) { return a.value < b.value ? b : a; }
  friend TILEWRIGHT_HOST_DEVICE Dual fminf(Dual a, Dual b) { return b.value < a.value ? b : a; }
  friend TILEWRIGHT_HOST_DEVICE Dual floorf(Dual a) {
    return {TILEWRIGHT_C_FUNCTION(floorf)(a.value)};
  }

  // The names of core/math.cuh.
  friend TILEWRIGHT_HOST_DEVICE Dual Tanh(Dual a) { return tanhf(a); }
  friend TILEWRIGHT_HOST_DEVICE Dual Exp(Dual a) { return expf(a); }
  friend TILEWRIGHT_HOST_DEVICE Dual Log(Dual a) { return logf(a); }
};

}  // namespace tilewright

#undef TILEWRIGHT_C_FUNCTION

#endif  // TILEWRIGHT_CORE_DUAL_CUH_
