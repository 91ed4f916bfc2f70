//! The epilogues of cuBLASLt that a `kernel` may use, by the library's own names.
//!
//! In: a name. Out: the extra tensor that the epilogue reads besides the two operands of the
//! product, and the one that it stores besides the result; a kernel's op lists its operands and
//! results in this order. Invariant: the semantics of the epilogues are not defined here but in the
//! library's documentation, and `verify` tests kernels against it.

/// An extra tensor of an epilogue, besides the operands and the result of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A vector: one number per column of the result (for BGRADB, per row).
    Vector,
    /// One number per element of the result.
    Full,
    /// One bit per element of the result, eight to a byte, lowest bit first.
    Bits,
}

/// An epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The library's name for it.
    pub name: &'static str,
    /// The tensor it reads after the two operands of the product.
    pub reads: Option<Beside>,
    /// The tensor it stores after the result.
    pub stores: Option<Beside>,
}

const fn form(name: &'static str, reads: Option<Beside>, stores: Option<Beside>) -> Form {
    Form { name, reads, stores }
}

/// All of them.
pub const FORMS: &[Form] = &[
    form("DEFAULT", None, None),
    form("BIAS", Some(Beside::Vector), None),
    form("RELU", None, None),
    form("RELU_BIAS", Some(Beside::Vector), None),
    form("RELU_AUX", None, Some(Beside::Bits)),
    form("RELU_AUX_BIAS", Some(Beside::Vector), Some(Beside::Bits)),
    form("DRELU", Some(Beside::Bits), None),
    form("DRELU_BGRAD", Some(Beside::Bits), Some(Beside::Vector)),
    form("GELU", None, None),
    form("GELU_BIAS", Some(Beside::Vector), None),
    form("GELU_AUX", None, Some(Beside::Full)),
    form("GELU_AUX_BIAS", Some(Beside::Vector), Some(Beside::Full)),
    form("DGELU", Some(Beside::Full), None),
    form("DGELU_BGRAD", Some(Beside::Full), Some(Beside::Vector)),
    form("BGRADA", None, Some(Beside::Vector)),
    form("BGRADB", None, Some(Beside::Vector)),
];

impl Form {
    /// The epilogue of that name.
    pub fn named(name: &str) -> Option<&'static Form> {
        FORMS.iter().find(|f| f.name == name)
    }

    /// True for the epilogues that training needs. The library has them only for some types and
    /// layouts, and they are not always faster than a product and a separate pass, so each is
    /// measured before it is used.
    pub fn is_tried(&self) -> bool {
        self.stores.is_some() || matches!(self.reads, Some(Beside::Full | Beside::Bits))
    }
}
