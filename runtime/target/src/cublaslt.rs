//! The epilogues of cuBLASLt, by the library's own names: what a `kernel` may be bound to.
//!
//! In: a name. Out: what the epilogue reads beside the two operands of the product, and what it stores beside the result,
//! which is how a kernel's op lists its operands and results. Holds always: what the epilogues compute is not said here
//! but documented by the library, and `verify` holds kernels against that.

/// A tensor beside the operands and the result of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A vector: one number for each column of the result (of BGRADB for each row).
    Vector,
    /// As many numbers as the result has.
    Full,
    /// One bit for each number of the result, eight in a byte, the lowest first.
    Bits,
}

/// An epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The library's name for it.
    pub name: &'static str,
    /// What it reads behind the two operands of the product.
    pub reads: Option<Beside>,
    /// What it stores behind the result.
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

    /// True for the forms that training needs. The library has them for some types and layouts only, and they are not always
    /// faster than a product and a pass: each is tried before it is used.
    pub fn is_tried(&self) -> bool {
        self.stores.is_some() || matches!(self.reads, Some(Beside::Full | Beside::Bits))
    }
}
