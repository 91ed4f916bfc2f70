//! A module from tokens.
#![allow(clippy::unwrap_used, missing_docs)]
mod here {
    hypatia::hypatia_rules! {
        pub mod rules;
        use core::*;
        use nn::*;
        /// Twice as much: "text", 1e-5 and x.0 are tokens.
        scalar twice(x) = x * 2.0e0; // A comment.
        op normed<T: float>(x: T[..s, n], eps: float = 1e-5) -> T[..s, n] = x * rsqrt(mean(x * x, axes = [-1]) + eps);
        ruleset mine { until = fixpoint; }
        rule mine::never: x * (7.5 ~ 1e-3) => twice(x) requires rank(x) == 7, not (dim(x, 0) >= 3);
    }
}

#[test]
fn a_module_from_tokens() {
    assert_eq!(here::rules::scalars::f32::twice(2.0), 4.0);
}
