//! The diagnostic codes that name resolution, sema and the lints report. Their long texts are in
//! `codes`.

use crate::diag::Code;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $n:literal;)*) => {
        $($(#[$doc])* pub const $name: Code = Code($n);)*
        /// Every code of this file, for the test that each has a long text.
        pub const ALL: &[Code] = &[$($name,)*];
    };
}

codes! {
    /// An undeclared name.
    UNKNOWN_NAME = 201;
    /// A name that is declared twice.
    DUPLICATE = 202;
    /// A `use` whose file is not found.
    NO_MODULE = 203;
    /// Import cycle: files that `use` each other.
    USE_CYCLE = 204;
    /// An ambiguous name: two `use ...::*` import it.
    AMBIGUOUS = 205;
    /// A file that could not be read.
    UNREADABLE = 206;
    /// A name of the wrong kind: a family where an op is needed, and so on.
    WRONG_KIND = 208;
    /// A recursive definition.
    RECURSION = 209;
    /// A setting of a ruleset that is unknown or ill-formed.
    SETTING = 210;
    /// A reserved name.
    RESERVED = 211;
    /// Too many or too few arguments.
    ARITY = 320;
    /// An argument name that the declaration does not have, or that is given twice.
    ARGUMENT_NAME = 321;
    /// A missing attribute without a default.
    MISSING_ATTRIBUTE = 322;
    /// A tensor where an attribute is needed, an attribute where a tensor is needed, and so on.
    SORT = 323;
    /// An attribute value of the wrong type.
    ATTRIBUTE_TYPE = 324;
    /// An ill-formed type.
    BAD_TYPE = 325;
    /// A body whose type is not the declared one.
    BODY_TYPE = 326;
    /// A `builtin` that does not exist, or whose declaration does not match it.
    BUILTIN = 327;
    /// A number where a boolean is needed, or the reverse.
    KIND = 328;
    /// An optional operand used as if it were always present.
    OPTIONAL = 329;
    /// An expression that is not allowed in this context.
    MISPLACED = 330;
    /// `grad` with the wrong number of derivatives.
    GRAD = 331;
    /// A size or attribute divided by zero.
    ZERO_DIVISOR = 332;
    /// Unbound variable: the right side uses a variable that the left side does not bind.
    UNBOUND = 401;
    /// A left side that is not an application of an op or a scalar.
    BARE_ROOT = 402;
    /// Several roots that share nothing.
    UNRELATED_ROOTS = 403;
    /// The two sides have different numbers of roots.
    ROOT_COUNT = 404;
    /// A guard that is not a boolean.
    NOT_BOOLEAN = 405;
    /// A fact that is not allowed in this guard.
    FACT_PLACE = 406;
    /// Alternatives that bind different variables.
    ALTERNATIVES = 407;
    /// A rule that would make an e-class contain itself.
    SELF_CONTAINING = 408;
    /// A declaration that yields too many rules or too large a pattern.
    TOO_LARGE = 409;
    /// A pattern that leaves out an attribute without a default.
    UNMENTIONED_ATTRIBUTE = 410;
    /// The two sides of a rule have different types.
    SIDES_TYPE = 411;
    /// An ill-formed rounding class.
    CLASS = 412;
    /// A variable for a pointwise region where none is allowed.
    REGION = 413;
    /// An ill-formed family.
    FAMILY = 414;
    /// An ill-formed saving.
    SAVES = 415;
    /// An unused variable.
    UNUSED_VARIABLE = 501;
    /// A duplicate of another rule.
    DUPLICATE_RULE = 502;
    /// A rule that a more general rule makes redundant.
    SUBSUMED_RULE = 503;
    /// A guard that is never true.
    UNREACHABLE_GUARD = 504;
    /// An op that no kernel runs and no rule uses.
    NO_KERNEL = 505;
    /// A rule whose right side matches its left side again, without end.
    GROWS = 506;
    /// A pattern that matches no value that any op can produce.
    UNMATCHABLE = 507;
    /// A named pattern that no rule uses.
    UNUSED_PATTERN = 508;
    /// A declaration that shadows one imported by `use ...::*`.
    SHADOWS = 509;
    /// An element type that a declaration's bounds admit but for which its body or right side is
    /// undefined.
    BOUND = 510;
    /// A cost formula that is negative or no number.
    COST = 511;
    /// A rule whose two sides are the same.
    CHANGES_NOTHING = 512;
    /// A kernel that does not have exactly one backend.
    BACKEND = 601;
    /// A kernel whose pattern is not an op.
    KERNEL_PATTERN = 602;
    /// An ill-formed tuning parameter.
    TUNE = 603;
    /// An unknown setting of a kernel.
    KERNEL_SETTING = 604;
    /// A template file that cannot be read.
    TEMPLATE_FILE = 605;
    /// An error in a template.
    TEMPLATE = 606;
    /// A kernel that cannot be generated from its op's body.
    KERNEL_BODY = 607;
    /// A kernel that no device admits.
    NEVER_ADMITTED = 608;
    /// An op with a kernel that no derived rule finds in a model.
    NOT_FOLDED = 609;
    /// A kernel of several results that becomes several launches.
    SEVERAL_LAUNCHES = 610;
    /// A device without a profile.
    TARGET = 701;
    /// An ill-formed input of a test.
    TEST_INPUT = 702;
    /// An ill-formed expectation.
    EXPECTATION = 703;
    /// An ill-formed clause of a contract.
    CONTRACT = 704;
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
