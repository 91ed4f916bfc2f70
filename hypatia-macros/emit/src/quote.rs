//! Values as Rust expressions.
//!
//! In: an element type, a builtin, a number. Out: an expression that is `==` to it when it is run. Holds always: the
//! generated module has `DType` and `BuiltinScalar` in scope; numbers keep their bits.

use proc_macro2::TokenStream;
use quote::quote;

use crate::builtin::BuiltinScalar;
use crate::dtype::DType;

/// Prints itself as an expression.
pub(super) trait Quote {
    /// The expression's tokens.
    fn quote(&self) -> TokenStream;
}

/// The tokens of text that this module wrote.
pub(super) fn tokens(text: &str) -> TokenStream {
    text.parse().unwrap_or_else(|e| {
        let message = format!("internal error: the emitted code cannot be read: {e}");
        quote!(compile_error!(#message))
    })
}

impl Quote for DType {
    fn quote(&self) -> TokenStream {
        tokens(&format!("DType::{self:?}"))
    }
}

impl Quote for BuiltinScalar {
    fn quote(&self) -> TokenStream {
        tokens(&format!("BuiltinScalar::{self:?}"))
    }
}

impl Quote for f64 {
    fn quote(&self) -> TokenStream {
        match self.is_finite() {
            true => tokens(&format!("{self:?}")),
            false => tokens(&format!("f64::from_bits({})", self.to_bits())),
        }
    }
}
