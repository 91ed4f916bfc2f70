//! Generated rules, for measuring how optimisation scales with their number.

use std::fmt::Write;

/// The functions and operators of their left sides; all occur in encoders.
const FUNCTIONS: [&str; 5] = ["exp", "tanh", "erf", "sqrt", "neg"];
const OPERATORS: [&str; 4] = ["+", "*", "-", "/"];
const OPERANDS: [&str; 4] = ["x", "y", "z", "matmul(a, b)"];
/// Fewer applications than this, and a rule would fire.
const LEAST: usize = 4;

/// The text of a file with that many rules, whose left sides differ and occur in no model.
pub fn generated(count: usize) -> String {
    let mut made = Generator { seed: 7 };
    let mut text = String::from("edition 1;\nuse core::*;\nruleset generated { until = fixpoint; }\n");
    let mut seen = std::collections::HashSet::new();
    while seen.len() < count {
        let mut applications = 0;
        let left = made.expression(4, &mut applications);
        if applications >= LEAST && seen.insert(left.clone()) {
            // The right side is the left one with a number that canonical rules remove.
            let _ = writeln!(text, "rule generated::r{}: {left} => {left} + 0.0;", seen.len());
        }
    }
    text
}

struct Generator {
    seed: u64,
}

impl Generator {
    /// A number below `n` (Knuth's linear congruential generator).
    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n
    }

    /// An expression of at most that depth. Counts its functions and operators.
    fn expression(&mut self, depth: usize, applications: &mut usize) -> String {
        let kind = self.below(8);
        if depth == 0 || (kind == 0 && depth < 4) {
            return OPERANDS[self.below(OPERANDS.len())].into();
        }
        *applications += 1;
        if kind < 3 {
            return format!("{}({})", FUNCTIONS[self.below(FUNCTIONS.len())], self.expression(depth - 1, applications));
        }
        let (left, right) = (self.expression(depth - 1, applications), self.expression(depth - 1, applications));
        format!("({left} {} {right})", OPERATORS[self.below(OPERATORS.len())])
    }
}
