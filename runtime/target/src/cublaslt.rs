//! The epilogues of cuBLASLt that a `kernel` may use, by the library's own names.
//!
//! In: a name. Out: the extra tensor that the epilogue reads besides the two operands of the
//! product, and the one that it stores besides the result; a kernel's op lists its operands and
//! results in this order. Invariant: the semantics of the epilogues are not defined here but in the
//! library's documentation, and `verify` tests kernels against it.

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

/// An epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// The library's name for it.
    pub name: &'static str,
    /// The tensor it reads after the two operands of the product.
    pub reads: Option<ExtraTensor>,
    /// The tensor it stores after the result.
    pub stores: Option<ExtraTensor>,
}

const fn epilogue(name: &'static str, reads: Option<ExtraTensor>, stores: Option<ExtraTensor>) -> Epilogue {
    Epilogue { name, reads, stores }
}

/// All of them.
pub const EPILOGUES: &[Epilogue] = &[
    epilogue("DEFAULT", None, None),
    epilogue("BIAS", Some(ExtraTensor::Vector), None),
    epilogue("RELU", None, None),
    epilogue("RELU_BIAS", Some(ExtraTensor::Vector), None),
    epilogue("RELU_AUX", None, Some(ExtraTensor::Bits)),
    epilogue("RELU_AUX_BIAS", Some(ExtraTensor::Vector), Some(ExtraTensor::Bits)),
    epilogue("DRELU", Some(ExtraTensor::Bits), None),
    epilogue("DRELU_BGRAD", Some(ExtraTensor::Bits), Some(ExtraTensor::Vector)),
    epilogue("GELU", None, None),
    epilogue("GELU_BIAS", Some(ExtraTensor::Vector), None),
    epilogue("GELU_AUX", None, Some(ExtraTensor::Full)),
    epilogue("GELU_AUX_BIAS", Some(ExtraTensor::Vector), Some(ExtraTensor::Full)),
    epilogue("DGELU", Some(ExtraTensor::Full), None),
    epilogue("DGELU_BGRAD", Some(ExtraTensor::Full), Some(ExtraTensor::Vector)),
    epilogue("BGRADA", None, Some(ExtraTensor::Vector)),
    epilogue("BGRADB", None, Some(ExtraTensor::Vector)),
];

impl Epilogue {
    /// The epilogue of that name.
    pub fn named(name: &str) -> Option<&'static Epilogue> {
        EPILOGUES.iter().find(|f| f.name == name)
    }

    /// True for the epilogues that training needs. The library has them only for some types and
    /// layouts, and they are not always faster than a product and a separate pass, so each is
    /// measured before it is used.
    pub fn is_tried(&self) -> bool {
        self.stores.is_some() || matches!(self.reads, Some(ExtraTensor::Full | ExtraTensor::Bits))
    }
}
