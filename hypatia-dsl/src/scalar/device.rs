//! The short device functions that a scalar may name as its f32 implementation: `scalar f(x) = ...
//! device "f";`.
//!
//! In: a name. Out: its number of arguments, and what it computes in f32, as defined in
//! templates/prelude.cu.j2. Invariant: each is a function of that file or one of the device's own,
//! and the emulation here computes the same value, up to the error `off` of the device's
//! instructions.

/// A short device function.
pub struct DeviceFunction {
    /// Its name.
    pub name: &'static str,
    /// Its number of arguments.
    pub arity: usize,
    /// Emulates its value. `off` is the error of the device's instructions for powers of two and
    /// their inverse, in units in the last place (ULP): at most two for the power and one for the
    /// inverse.
    pub emulate: fn(&[f32], off: i32) -> f32,
}

/// Maximum error of a device instruction in ULP.
pub const MOST_OFF: i32 = 2;

/// All of them.
pub const DEVICE_FUNCTIONS: [DeviceFunction; 8] = [
    DeviceFunction { name: "__expf", arity: 1, emulate: |x, off| exp2(x[0] * std::f32::consts::LOG2_E, off) },
    DeviceFunction { name: "one_plus_erf", arity: 1, emulate: |x, off| one_plus_erf(&ERF, x[0], off) },
    DeviceFunction { name: "one_plus_erf_bf16", arity: 1, emulate: |x, off| one_plus_erf(&ERF_BF16, x[0], off) },
    DeviceFunction { name: "one_plus_tanh", arity: 1, emulate: |x, off| one_plus_tanh(x[0], off) },
    DeviceFunction { name: "one_over_one_plus_exp", arity: 1, emulate: |x, off| logistic(x[0], off) },
    DeviceFunction { name: "tanh_softplus", arity: 1, emulate: |x, off| tanh_softplus(x[0], off) },
    DeviceFunction { name: "tanh_approx", arity: 1, emulate: |x, off| tanh_approx(x[0], off) },
    DeviceFunction { name: "over_row", arity: 2, emulate: |x, _| over_row(x[0], x[1]) },
];

/// The function of that name.
pub fn device_function(name: &str) -> Option<&'static DeviceFunction> {
    DEVICE_FUNCTIONS.iter().find(|f| f.name == name)
}

/// The number that is `off` ULP away from `x`.
fn moved(x: f32, off: i32) -> f32 {
    if x.is_finite() && x != 0.0 { f32::from_bits(x.to_bits().saturating_add_signed(off)) } else { x }
}

/// 2 to the power of a.
fn exp2(a: f32, off: i32) -> f32 {
    moved(libm::exp2(f64::from(a)) as f32, off)
}

/// The same; 0 for subnormal results.
fn near_exp2(a: f32, off: i32) -> f32 {
    let r = exp2(a, off);
    if r < f32::MIN_POSITIVE { 0.0 } else { r }
}

/// `q` of `erfc(t) = 2^(t q(t))`, the highest power of `t` first: for 11 bits, and for 8.
const ERF: [f32; 7] = [-1.780854e-5, 4.469424e-4, -4.984556e-3, 3.3189885e-2, -1.513243e-1, -9.178743e-1, -1.6278666];
const ERF_BF16: [f32; 5] = [-8.807399e-4, 1.5358133e-2, -1.1307789e-1, -9.550343e-1, -1.6159452];

fn one_plus_erf(q: &[f32], x: f32, off: i32) -> f32 {
    let t = x.abs();
    let q = q[1..].iter().fold(q[0], |q, c| q.mul_add(t, *c));
    let e = near_exp2(q * t, off);
    if x < 0.0 { e } else { 2.0 - e }
}

/// 1 / y; 0 for subnormal results.
fn near_inverse(y: f32, off: i32) -> f32 {
    let r = moved(1.0 / y, off.signum());
    if r.abs() < f32::MIN_POSITIVE { 0.0 } else { r }
}

fn one_plus_tanh(x: f32, off: i32) -> f32 {
    2.0 * near_inverse(1.0 + near_exp2(-2.885_39 * x, off), off)
}

fn tanh_softplus(x: f32, off: i32) -> f32 {
    let w = near_exp2(std::f32::consts::LOG2_E * if x > 20.0 { 20.0 } else { x }, off);
    let n = w.mul_add(w, w + w);
    n * near_inverse(n + 2.0, off)
}

fn logistic(x: f32, off: i32) -> f32 {
    let y = near_exp2(x.mul_add(std::f32::consts::LOG2_E, -24.0), off) + 5.9604645e-8;
    5.9604645e-8 * near_inverse(y, off)
}

/// The device's instruction has a relative error of at most 2^-11.
fn tanh_approx(x: f32, off: i32) -> f32 {
    moved(libm::tanh(f64::from(x)) as f32, off * 2048).clamp(-1.0, 1.0)
}

fn over_row(x: f32, y: f32) -> f32 {
    let a = y.abs();
    let s = if a > 8.507059e37 {
        2.3283064e-10
    } else if a < 7.888609e-31 {
        1.8446744e19
    } else {
        1.0
    };
    (x * s) * (1.0 / (y * s))
}
