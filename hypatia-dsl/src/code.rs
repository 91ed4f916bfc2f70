//! The codes that name resolution, sema and the lints report. Their long texts are in `codes`.

use crate::diag::Code;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $n:literal;)*) => {
        $($(#[$doc])* pub const $name: Code = Code($n);)*
        /// Every code of this file, for the test that each has a long text.
        pub const ALL: &[Code] = &[$($name,)*];
    };
}

codes! {
    /// A name that nothing declares.
    UNKNOWN_NAME = 201;
    /// A name that is declared twice.
    DUPLICATE = 202;
    /// A `use` that finds no file.
    NO_MODULE = 203;
    /// Files that use each other in a circle.
    USE_CYCLE = 204;
    /// A name that two `use ...::*` bring in.
    AMBIGUOUS = 205;
    /// A file that could not be read.
    UNREADABLE = 206;
    /// A name of the wrong kind: a family where an op is needed, and so on.
    WRONG_KIND = 208;
    /// Something that is defined by itself.
    RECURSION = 209;
    /// A setting of a ruleset that is unknown or ill-formed.
    SETTING = 210;
    /// A name with a meaning of its own.
    RESERVED = 211;
    /// Too many or too few arguments.
    ARITY = 320;
    /// An argument name that the declaration does not have, or that is given twice.
    ARGUMENT_NAME = 321;
    /// An attribute without a value.
    MISSING_ATTRIBUTE = 322;
    /// A tensor where an attribute is needed, an attribute where a tensor is needed, and so on.
    SORT = 323;
    /// An attribute whose value is of another type.
    ATTRIBUTE_TYPE = 324;
    /// A type that is ill-formed.
    BAD_TYPE = 325;
    /// A body whose type is not the declared one.
    BODY_TYPE = 326;
    /// A `builtin` that does not exist, or is declared unlike it is.
    BUILTIN = 327;
    /// A number where a truth value is needed, or the other way round.
    KIND = 328;
    /// An optional operand that is used as if it were always there.
    OPTIONAL = 329;
    /// An expression that has no meaning where it stands.
    MISPLACED = 330;
    /// `grad` with a wrong number of derivatives.
    GRAD = 331;
    /// A size or attribute divided by zero.
    ZERO_DIVISOR = 332;
    /// A variable on the right side that the left side does not bind.
    UNBOUND = 401;
    /// A left side that is no application.
    BARE_ROOT = 402;
    /// Several roots that have nothing in common.
    UNRELATED_ROOTS = 403;
    /// Unequal numbers of roots.
    ROOT_COUNT = 404;
    /// A guard that is no truth value.
    NOT_BOOLEAN = 405;
    /// A fact that is not allowed in this guard.
    FACT_PLACE = 406;
    /// Alternatives that bind different variables.
    ALTERNATIVES = 407;
    /// A rule that makes a class contain itself.
    SELF_CONTAINING = 408;
    /// Too many rules or too large a pattern from one declaration.
    TOO_LARGE = 409;
    /// An attribute without default that a pattern does not mention.
    UNMENTIONED_ATTRIBUTE = 410;
    /// Sides of different types.
    SIDES_TYPE = 411;
    /// A rounding class that is ill-formed.
    CLASS = 412;
    /// A variable for pointwise work that stands where it cannot.
    REGION = 413;
    /// A family that is ill-formed.
    FAMILY = 414;
    /// A variable that is bound and never used.
    UNUSED_VARIABLE = 501;
    /// A rule that says what another one says.
    DUPLICATE_RULE = 502;
    /// A rule that can fire only where a more general one does the same.
    SUBSUMED_RULE = 503;
    /// A guard that can never hold.
    UNREACHABLE_GUARD = 504;
    /// An op that nothing can run or use.
    NO_KERNEL = 505;
    /// A right side in which the left side matches again, without end.
    GROWS = 506;
    /// A pattern that matches no value any op can produce.
    UNMATCHABLE = 507;
    /// A named pattern that no rule uses.
    UNUSED_PATTERN = 508;
    /// A declaration that hides one that `use ...::*` brings in.
    SHADOWS = 509;
    /// An element type that a declaration lets in, for which the body or the right side has no meaning.
    BOUND = 510;
    /// A kernel without exactly one way to make it.
    BACKEND = 601;
    /// A kernel for something that is no op.
    KERNEL_PATTERN = 602;
    /// A tuning parameter that is ill-formed.
    TUNE = 603;
    /// A setting of a kernel that is unknown.
    KERNEL_SETTING = 604;
    /// A template that cannot be read.
    TEMPLATE_FILE = 605;
    /// A template that is wrong.
    TEMPLATE = 606;
    /// A kernel that cannot be generated from its op's body.
    KERNEL_BODY = 607;
    /// A device that has no profile.
    TARGET = 701;
    /// An input of a test that is ill-formed.
    TEST_INPUT = 702;
    /// An expectation that is ill-formed.
    EXPECTATION = 703;
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_code_has_a_row() {
        for code in super::ALL {
            assert!(crate::codes::all().any(|r| r.code == *code), "{code} has no row");
        }
    }
}
