//! How a rule that fails is shown.
//!
//! In: the choices of an instance that fails, or a loss of precision. Out: a small counterexample,
//! as a message and a `test` block. Invariant: the instance that is shown was computed again, and
//! fails in the same way.

use super::*;

/// Small instances that are searched for a visible loss of precision.
const SMALL_TRIES: usize = 2000;

impl Run<'_> {
    /// A loss of precision, shown on a small instance where there is one.
    pub(super) fn loss(&self, dtype: DType, worse: &Worse) -> Counterexample {
        let class = claim(self.rule, dtype);
        let focus = Focus { dtype: Some(worse.main), ensemble: Some(worse.kind), small: true, ..Focus::default() };
        let fits = |i: &Instance| worse.main == dtype || i.left.iter().all(|v| i.graph.ty(*v).dtype == dtype);
        let effort = Effort::default();
        let look = |choices: Source, rare: bool| -> Option<(ChoiceSequence, Instance, Difference)> {
            let mut source = choices;
            let made = instance(self.program, self.rule, self.hints, &mut source, focus, &|_, _| None).ok();
            let sought = || solved(self.program, self.rule, self.hints, &mut source, focus, &effort);
            let made = if rare { made.or_else(sought) } else { made }.filter(fits)?;
            let difference = measure(self.rule, &made, class)?.difference(&made)?;
            Some((source.into_choices(), made, difference))
        };
        let found = (0..SMALL_TRIES).find_map(|i| look(Source::random(i as u64), is_rare(i, 0)));
        let message = worse.message(dtype);
        let Some((choices, ..)) = found else {
            return Counterexample { message, kind: "rounding", test: String::new() };
        };
        let small = shrink(choices, &mut |t| look(Source::replay(t.clone()), false).map(|l| l.0));
        let shown = look(Source::replay(small), false).and_then(|(_, made, difference)| {
            let sides = untyped_sides(self.rule, &made).ok()?;
            let (left, right) = difference.shown();
            let which = difference.less_precise().map_or(String::new(), |w| format!("; {w}"));
            let message = format!("{message}; an element is {left} on the left, {right} on the right{which}");
            let title = format!("{} is false", self.rule.name);
            Some((message, test_block(&title, &made, &sides, Failure::Rounding, Some(&difference))))
        });
        let (message, test) = shown.unwrap_or((message, String::new()));
        Counterexample { message, kind: "rounding", test }
    }

    /// The verdict of an instance that fails.
    pub(super) fn refuted(&self, choices: ChoiceSequence, failure: Failure) -> Status {
        let shown = Box::new(self.counterexample(choices, failure));
        if failure == Failure::NoBody { Status::Undefined(shown) } else { Status::False(shown) }
    }

    fn counterexample(&self, choices: ChoiceSequence, failure: Failure) -> Counterexample {
        let look = |choices: &ChoiceSequence| -> Option<(ChoiceSequence, Instance, Observation, Option<Difference>)> {
            let mut source = Source::replay(choices.clone());
            let instance = self.focused(&mut source, false, self.focus).ok()?;
            let seen = observe(self.rule, &instance).ok()?;
            let dtype = seen.dtype?;
            let (kind, difference) = seen.against(claim(self.rule, dtype))?;
            let difference = difference.cloned();
            (kind == failure).then(|| (source.into_choices(), instance, seen, difference))
        };
        let small = shrink(choices, &mut |t| look(t).map(|l| l.0));
        let Some((_, instance, seen, difference)) = look(&small) else {
            return Counterexample {
                message: "the failure could not be reproduced".into(),
                kind: "value",
                test: String::new(),
            };
        };
        let dtype = seen.dtype.unwrap_or(DType::F32);
        let claimed = show_class(claim(self.rule, dtype));
        let values = difference.as_ref().map_or(String::new(), |d| {
            let root = instance.left.get(d.root).map(|v| instance.graph.ty(*v).dtype);
            let (left, right) = d.shown_in(root.unwrap_or(DType::F32));
            let dims = instance.left.get(d.root).map(|v| instance.graph.ty(*v).shape.iter());
            let shape: Vec<usize> =
                dims.into_iter().flatten().filter_map(|d| usize::try_from(d.as_const()?).ok()).collect();
            let at = position(d.index, &shape);
            let sides = format!("element {at} is {left} on the left, {right} on the right");
            // This is known only for finite values and differences of precision.
            d.less_precise().map_or(sides.clone(), |which| format!("{sides}; {which}"))
        });
        let (kind, message) = match failure {
            Failure::NoMeaning => ("type", seen.no_meaning.clone().unwrap_or_default()),
            Failure::Broken => ("type", seen.broken.clone().unwrap_or_default()),
            Failure::NoBody => {
                let why = seen.no_body.as_deref().unwrap_or_default();
                ("body", format!("an op of the right side has no meaning for operands that it accepts: {why}"))
            }
            Failure::Value | Failure::Integer => ("value", format!("the sides differ in {dtype}: {values}")),
            Failure::Structure => ("nan", format!("a NaN or an infinity is lost or introduced in {dtype}: {values}")),
            Failure::Rounding => {
                ("rounding", format!("the right side is less precise than rounding in {dtype} explains: {values}"))
            }
            Failure::Bits | Failure::FiniteBits => ("class", format!("claims `{claimed}` for {dtype}, but {values}")),
            Failure::NotExercised => ("value", "it could not be exercised".to_string()),
            Failure::Approx => ("class", format!("claims `{claimed}` for {dtype}, but {values}")),
        };
        let verdict = if failure == Failure::NoBody { "cannot be judged" } else { "is false" };
        let title = format!("{} {verdict}", self.rule.name);
        // A right side of another type can still be written and compared; one without a value
        // cannot.
        let test = match untyped_sides(self.rule, &instance) {
            Ok(s) => test_block(&title, &instance, &s, failure, difference.as_ref()),
            Err(why) => {
                let title = format!("{} applies here, but its right side has no value", self.rule.name);
                left_block(&title, &instance, &format!("fires {}", self.rule.base_name), &why.message(), true)
            }
        };
        Counterexample { message, kind, test }
    }
}
