//! The epilogues of cuBLASLt that a `kernel` may use, by the library's own names.
//!
//! In: a name. Out: the epilogue as a type, with the extra tensor that it reads besides the two
//! operands of the product, and the one that it stores besides the result; a kernel's op lists its
//! operands and results in this order. Invariant: this is the one list of epilogues. What each
//! computes is defined by the library's documentation, and `verify` tests kernels against that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An extra tensor of an epilogue, besides the operands and the result of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraTensor {
    /// A vector: one number per column of the result (for BGRADB, per row).
    Vector,
    /// One number per element of the result.
    Full,
    /// One bit per element of the result, eight to a byte, lowest bit first.
    Bits,
}

macro_rules! epilogues {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, reads $reads:expr, stores $stores:expr;)*) => {
        /// An epilogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Epilogue { $($(#[$doc])* $variant,)* }

        impl Epilogue {
            /// All of them.
            pub const ALL: &'static [Epilogue] = &[$(Epilogue::$variant,)*];

            /// The library's name for it.
            pub fn name(self) -> &'static str {
                match self { $(Epilogue::$variant => $name,)* }
            }

            /// The epilogue of that name.
            pub fn named(name: &str) -> Option<Epilogue> {
                match name { $($name => Some(Epilogue::$variant),)* _ => None }
            }

            /// The tensor it reads after the two operands of the product.
            pub fn reads(self) -> Option<ExtraTensor> {
                use ExtraTensor::*;
                match self { $(Epilogue::$variant => $reads,)* }
            }

            /// The tensor it stores after the result.
            pub fn stores(self) -> Option<ExtraTensor> {
                use ExtraTensor::*;
                match self { $(Epilogue::$variant => $stores,)* }
            }
        }
    };
}

epilogues! {
    /// The accumulator.
    Default = "DEFAULT", reads None, stores None;
    /// `acc + bias`
    Bias = "BIAS", reads Some(Vector), stores None;
    /// `max(acc, 0)`, 0 for NaN.
    Relu = "RELU", reads None, stores None;
    /// `max(acc + bias, 0)`, 0 for NaN.
    ReluBias = "RELU_BIAS", reads Some(Vector), stores None;
    /// `max(acc, 0)`, and a bit mask as the second result: a bit is set where `acc` is not
    /// negative.
    ReluAux = "RELU_AUX", reads None, stores Some(Bits);
    /// As `ReluAux`, for `acc + bias`.
    ReluAuxBias = "RELU_AUX_BIAS", reads Some(Vector), stores Some(Bits);
    /// `acc` where the bit of the mask is set, else 0.
    Drelu = "DRELU", reads Some(Bits), stores None;
    /// As `Drelu`, and its column sums.
    DreluBgrad = "DRELU_BGRAD", reads Some(Bits), stores Some(Vector);
    /// GELU, tanh approximation.
    Gelu = "GELU", reads None, stores None;
    /// GELU of `acc + bias`, tanh approximation.
    GeluBias = "GELU_BIAS", reads Some(Vector), stores None;
    /// GELU, and its argument as the second result.
    GeluAux = "GELU_AUX", reads None, stores Some(Full);
    /// GELU of `acc + bias`, and its argument as the second result.
    GeluAuxBias = "GELU_AUX_BIAS", reads Some(Vector), stores Some(Full);
    /// `acc` times the derivative of GELU at the second matrix.
    Dgelu = "DGELU", reads Some(Full), stores None;
    /// As `Dgelu`, and its column sums.
    DgeluBgrad = "DGELU_BGRAD", reads Some(Full), stores Some(Vector);
    /// The accumulator, and the column sums of B, which the library calls A.
    BgradA = "BGRADA", reads None, stores Some(Vector);
    /// The accumulator, and the row sums of A, which the library calls B.
    BgradB = "BGRADB", reads None, stores Some(Vector);
}

impl Epilogue {
    /// True if it reads a bias.
    pub fn has_bias(self) -> bool {
        self.reads() == Some(ExtraTensor::Vector)
    }

    /// True if it stores the gradient of a bias.
    pub fn stores_sums(self) -> bool {
        self.stores() == Some(ExtraTensor::Vector)
    }

    /// True if it stores a second matrix.
    pub fn stores_aux(self) -> bool {
        matches!(self.stores(), Some(ExtraTensor::Full | ExtraTensor::Bits))
    }

    /// True if it reads or stores a second matrix.
    pub fn has_aux(self) -> bool {
        self.stores_aux() || matches!(self.reads(), Some(ExtraTensor::Full | ExtraTensor::Bits))
    }

    /// True for the epilogues that training needs: those with a second matrix or sums. The library
    /// has them only for some types and layouts, and they are not always faster than a product and
    /// a separate pass. So a launch keeps the steps that compute the same, and is timed beside
    /// them.
    pub fn needs_fallback(self) -> bool {
        self.has_aux() || self.stores_sums()
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library spells in a name what the epilogue reads and stores.
    #[test]
    fn names_say_what_is_read_and_stored() {
        for epilogue in Epilogue::ALL.iter().copied() {
            let name = epilogue.name();
            assert_eq!(Epilogue::named(name), Some(epilogue), "{name}");
            assert_eq!(epilogue.has_bias(), name.ends_with("BIAS"), "{name}");
            assert_eq!(epilogue.stores_sums(), name.contains("BGRAD"), "{name}");
            assert_eq!(epilogue.stores_aux(), name.contains("AUX"), "{name}");
            assert_eq!(
                epilogue.has_aux(),
                name.contains("AUX") || name.starts_with('D') && name != "DEFAULT",
                "{name}"
            );
            let bits = [epilogue.reads(), epilogue.stores()].contains(&Some(ExtraTensor::Bits));
            assert_eq!(bits, epilogue.has_aux() && name.contains("RELU"), "{name}");
        }
        assert_eq!(Epilogue::named("SILU"), None);
    }
}
