//! Handlers of ONNX ops, by kind: each reads one node and adds graph nodes of the same meaning.

pub(super) mod attention;
pub(super) mod custom;
pub(super) mod einsum;
pub(super) mod index;
pub(super) mod linear;
pub(super) mod make;
mod non_finite;
pub(super) mod norm;
pub(super) mod order;
pub(super) mod pointwise;
pub(super) mod quantize;
pub(super) mod quantized;
pub(super) mod reduce;
pub(super) mod resize;
pub(super) mod sample;
mod transposed;
pub(super) mod views;
pub(super) mod window;
