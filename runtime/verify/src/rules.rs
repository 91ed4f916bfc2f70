//! Verification of one rule: many instances, the derived classes, and the first failure, shrunk.
//!
//! In: a rule, or a kernel or body that is written as one. Out: an [`Entry`] with the number of
//! instances, the class that holds for each element type, and a proof if there is one. Invariant: a
//! rule without a legal instance is not exercised, never verified.

mod goals;
mod seen;
mod shown;
mod sought;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, Pat, Program, Rule, VarId};
use hypatia_dsl::kernel::short::is_short;
use hypatia_dsl::numerics::Numerics;
use hypatia_dsl::regions::{Example, examples};
use hypatia_dsl::typing::{eval_guard, show_expr};

use super::block::{left_block, test_block};
use super::check::{Failure, Observation, observe};
use super::claim::claim;
use super::differ::Difference;
use super::differ::position;
use super::ensemble::{Ensembles, TYPES, Worse, measure, operand_type};
use super::epilogue::inside_epilogue;
use super::generate::{Effort, Focus, Instance, Reject, WAYS, elements, instance, is_rare, reject, solved};
use super::hints::Hints;
use super::inside::has_kernels;
use super::options::{Options, seed_of};
use super::proof::proved;
use super::report::{Counterexample, Entry, Status, Subject, show_class};
use super::short;
use super::shrink::shrink;
use super::sides::{sides, untyped_sides};
use super::skips::Skips;
use super::source::{ChoiceSequence, Source};
use super::vacuous::{Constant, Unnoticed};
use super::values::Distribution;
use goals::casts;
use hypatia_graph::{GraphFacts, NodeKind, Value};
use seen::Seen;
use sought::Aspect;

/// The report for a rule that only empty tensors matched.
const EMPTY: &str = "the search found only empty tensors that satisfy the guards";
/// The work limit of a rule for this many cases, in elements of all values of all instances, and
/// the number of instances that run regardless of their cost.
const WORK: usize = 1 << 20;
const CASES: usize = 100;
const FEWEST: usize = 16;
/// Instances that broken right sides are tried on.
const KEPT: usize = 100;
/// The fewest instances of an element type that the rule claims, and the attempts to find them.
const FEWEST_OF_A_TYPE: usize = 20;
const TRIES_OF_A_TYPE: u64 = 20_000;
/// Attempts at a way to satisfy the guards, for each instance, before it is given up.
const TRIES_OF_A_WAY: usize = 100;
/// Further instances that are searched for changes that none noticed.
const TRIES_OF_A_CHANGE: u64 = 6_000;
/// How many times as many there are at most if guards hold in several ways, and if instances are
/// rare.
const MOST_CHANGES: u64 = 4;
const MOST_OF_RARE: u64 = 5;
/// Instances that violate a guard, after which nothing needs it, and the attempts to find them.
const INSTANCES_OF_A_GUARD: usize = 200;
const TRIES_OF_A_GUARD: u64 = 4_000;
/// With fewer, nothing is said: chance may have left out those that matter.
const FEWEST_OF_A_GUARD: usize = 50;
/// Attempts per case before a rule is given up.
const TRIES_PER_CASE: usize = 300;

/// Verifies one rule: on tensors and, if it is lifted, also inside epilogues.
pub fn verify_rule(program: &Arc<Program>, rule: &Rule, options: &Options) -> Vec<Entry> {
    if is_short(program, rule) {
        return vec![short::verify(program, rule, options)];
    }
    let examples = examples(program, rule);
    if !examples.is_empty() {
        let mut entries: Vec<Entry> = Vec::new();
        for e in &examples {
            // If no such pointwise work fits, the rule never fires.
            let fits = |entry: &Entry| e.any_shape.is_empty() || !matches!(entry.status, Status::NotExercised { .. });
            entries.push(verify_example(program, e, options));
            if !entries.last().is_some_and(fits) {
                entries.pop();
            }
        }
        return entries;
    }
    let mut entry = verify_as(program, rule, Subject::Rule, options);
    if entry.status == Status::Verified
        && let Some(inside) = inside_epilogue(program, rule)
    {
        let half = Options { cases: options.cases.div_ceil(2), ..options.clone() };
        let hints = Hints::of(program, &inside);
        // The product's own overflow would count as the rule's: tensors judge precision.
        let run = Run { ensembles: false, ..Run::new(program, &inside, &hints) };
        let mut within = entry_of(run, Subject::Rule, &half);
        entry.cases += within.cases;
        entry.note = entry.note.or(within.note.take());
        // A rule whose guards require what a term lacks never fires there, so there is nothing to
        // check.
        if let Status::False(c) = &mut within.status {
            c.message = format!("inside an epilogue, {}", c.message);
            entry.status = within.status;
            entry.classes = within.classes;
        }
    }
    if entry.status == Status::Verified && !rule.derived {
        entry.warnings = idle_guards(program, rule, options);
    }
    vec![entry]
}

/// Verifies one example of a rule over pointwise work.
fn verify_example(program: &Arc<Program>, example: &Example, options: &Options) -> Entry {
    let hints = Hints::of(program, &example.rule);
    let run = Run { any_shape: &example.any_shape, ..Run::new(program, &example.rule, &hints) };
    entry_of(run, Subject::Rule, options)
}

/// Verifies anything that can be expressed as a rule.
pub(super) fn verify_as(program: &Arc<Program>, rule: &Rule, subject: Subject, options: &Options) -> Entry {
    let hints = Hints::of(program, rule);
    entry_of(Run::new(program, rule, &hints), subject, options)
}

fn entry_of(mut run: Run<'_>, subject: Subject, options: &Options) -> Entry {
    let rule = run.rule;
    let (cases, rejects) = run.cases(options);
    let imprecise = if run.first.is_none() { run.imprecise(options) } else { None };
    let holds = run.first.is_none() && imprecise.is_none();
    let class = |(dtype, s): (&DType, &Seen)| {
        // A class may excuse each instance, and none hold for all of them together.
        let claimed = claim(rule, *dtype);
        (*dtype, claimed, s.derived().or(holds.then_some(claimed)))
    };
    let classes = run.seen.iter().map(class).collect();
    let full: BTreeMap<DType, usize> = run.seen.iter().map(|(d, s)| (*d, s.full)).collect();
    let status = match (run.first.take(), imprecise) {
        (Some((choices, failure)), _) => run.refuted(choices, failure),
        (None, Some((dtype, worse))) => Status::False(Box::new(run.loss(dtype, &worse))),
        (None, None) => run.exercised(cases, &rejects),
    };
    let status = match status {
        Status::Verified => run.meaningful(&full, options),
        other => other,
    };
    let (name, origin) = (rule.name.clone(), rule.origin.clone());
    let skipped = run.skips.note("the right side").filter(|_| !matches!(status, Status::False(_)));
    let few = (status == Status::Verified && run.full < FEWEST.min(options.cases)).then(|| {
        let tried: Vec<&str> = run.seen.keys().map(|d| d.name()).collect();
        format!("only {} of {} instances were found, all of them in {}", run.full, options.cases, tried.join(", "))
    });
    let notes: Vec<String> = run.note.into_iter().chain(skipped).chain(few).collect();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    // Both sides of a derived rule are the same body: there is nothing to prove.
    let written = subject == Subject::Rule && !rule.derived && status == Status::Verified;
    let proved = if written { proved(run.program, rule) } else { None };
    let warnings = Vec::new();
    Entry { subject, name, origin, cases, classes, status, note, warnings, proved, derived: rule.derived }
}

/// A warning for each guard that nothing needs.
fn idle_guards(program: &Arc<Program>, rule: &Rule, options: &Options) -> Vec<String> {
    let needless = |i: &usize| guard_need(program, rule, *i, options) == Need::None;
    let warn = |i: usize| {
        let guard = show_expr(&rule.vars, &rule.requires[i]);
        format!("no instance needs the guard `{guard}`: it may be conservative; `prefer` is the place for profit")
    };
    (0..rule.requires.len()).filter(needless).map(warn).collect()
}

/// Whether a rule needs one of its guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it, the rule is false, as far as is known.
    Guard,
    /// No instance violates it: it follows from types, shapes and the other guards.
    Implied,
    /// The rule holds on instances that violate it too.
    None,
}

/// Whether a rule needs its guard number `index`: tried on instances that violate this guard alone.
pub fn guard_need(program: &Arc<Program>, rule: &Rule, index: usize, options: &Options) -> Need {
    let mut weaker = rule.clone();
    let guard = weaker.requires.remove(index);
    let hints = Hints::of(program, &weaker);
    let mut run = Run { strict: true, ..Run::new(program, &weaker, &hints) };
    let seed = seed_of(options, &rule.name) ^ 0x9a2d;
    let mut violated = 0;
    for attempt in 0..TRIES_OF_A_GUARD {
        if violated >= INSTANCES_OF_A_GUARD {
            break;
        }
        let mut source = Source::random(seed.wrapping_add(attempt << 16));
        let Ok(made) = run.instance(&mut source, true) else { continue };
        let facts = GraphFacts { graph: &made.graph, env: &made.env };
        if eval_guard(&guard, &made.env.attrs, &facts) == Some(true) {
            continue;
        }
        let Ok(seen) = observe(&weaker, &made) else { continue };
        let dtype = run.add(&made, &seen);
        if seen.against(claim(&weaker, dtype)).is_some() {
            return Need::Guard;
        }
        violated += usize::from(run.is_full(&made));
    }
    match violated {
        0 => Need::Implied,
        n if n < FEWEST_OF_A_GUARD => Need::Guard,
        _ if run.imprecise(options).is_some() => Need::Guard,
        _ if inside_epilogue(program, &weaker).is_some_and(|r| first_failure(program, &r, options).is_some()) => {
            Need::Guard
        }
        _ => Need::None,
    }
}

/// How a rule fails, without a counterexample; `None` if it was verified. For checking many rules
/// in a row. Here it is a failure if the guards accept an element type for which the right side is
/// undefined, or if hardly an instance is found.
pub fn first_failure(program: &Arc<Program>, rule: &Rule, options: &Options) -> Option<Failure> {
    if is_short(program, rule) {
        let entry = short::verify(program, rule, options);
        return (entry.status != Status::Verified).then_some(Failure::Approx);
    }
    let examples = examples(program, rule);
    if !examples.is_empty() {
        return examples.iter().find_map(|e| match failure_of(program, &e.rule, &e.any_shape, options) {
            Some(Failure::NotExercised | Failure::Broken | Failure::NoBody) if !e.any_shape.is_empty() => None,
            found => found,
        });
    }
    failure_of(program, rule, &[], options)
}

fn failure_of(program: &Arc<Program>, rule: &Rule, any_shape: &[VarId], options: &Options) -> Option<Failure> {
    let hints = Hints::of(program, rule);
    let mut run = Run { strict: true, any_shape, ..Run::new(program, rule, &hints) };
    let (cases, rejects) = run.cases(options);
    match run.first {
        Some((_, failure)) => Some(failure),
        None => {
            let few = run.full < FEWEST.min(options.cases);
            (few || run.exercised(cases, &rejects) != Status::Verified).then_some(Failure::NotExercised)
        }
    }
}

struct Run<'a> {
    program: &'a Arc<Program>,
    rule: &'a Rule,
    hints: &'a Hints<'a>,
    seen: BTreeMap<DType, Seen>,
    /// How often each alternative of each `|` was taken.
    branches: HashMap<usize, Vec<usize>>,
    first: Option<(ChoiceSequence, Failure)>,
    /// What the first failure was made with.
    focus: Focus,
    /// How the sides differ at infinities, which no class forbids.
    note: Option<String>,
    /// Instances for which the right side is undefined.
    skips: Skips,
    /// Treats such instances as failures.
    strict: bool,
    /// Whether precision is judged over ensembles.
    ensembles: bool,
    /// Operands of any shape. With these, instances whose right side cannot be built or has another
    /// type are ignored: the optimiser skips them too.
    any_shape: &'a [VarId],
    /// The number of instances without empty tensors: only these show what a rule does.
    full: usize,
    /// Some of them.
    kept: Vec<Instance>,
    /// How many instances show what.
    shown: HashMap<(Aspect, u64), usize>,
    /// The attempts at an instance so far, and how many of them gave one that is not empty.
    attempts: Cell<(usize, usize)>,
    /// The same for each way to satisfy the guards, if there are several.
    ways: RefCell<Vec<(usize, usize)>>,
    /// The way that is tried, where that is not left to chance.
    way: Cell<Option<usize>>,
    /// The instances of each element type and each of these ways.
    of_ways: HashMap<(DType, usize), usize>,
    effort: Effort,
}

impl<'a> Run<'a> {
    fn new(program: &'a Arc<Program>, rule: &'a Rule, hints: &'a Hints<'a>) -> Run<'a> {
        Run {
            program,
            rule,
            hints,
            seen: BTreeMap::new(),
            branches: branches_of(rule),
            first: None,
            focus: Focus::default(),
            note: None,
            skips: Skips::default(),
            strict: false,
            ensembles: true,
            any_shape: &[],
            full: 0,
            kept: Vec::new(),
            shown: HashMap::new(),
            attempts: Cell::default(),
            ways: RefCell::new(vec![(0, 0); hints.ways.len()]),
            way: Cell::default(),
            of_ways: HashMap::new(),
            effort: Effort::default(),
        }
    }

    /// Runs the cases. Returns the number of legal ones, and why others were rejected.
    fn cases(&mut self, options: &Options) -> (usize, HashMap<String, usize>) {
        let mut rejects: HashMap<String, usize> = HashMap::new();
        let mut count = |why: String| {
            if rejects.len() < 200 || rejects.contains_key(&why) {
                *rejects.entry(why).or_insert(0) += 1;
            }
        };
        let (mut cases, mut tries, mut work) = (0, 0u64, 0usize);
        let mut meaningless = None;
        // Shapes that fit both sides and distinguish them are rare.
        let wanted = options.cases * if self.any_shape.is_empty() { 1 } else { 5 };
        let limit = (wanted * TRIES_PER_CASE).max(3000) as u64;
        let seed = seed_of(options, &self.rule.name);
        while self.full < wanted && tries < limit && !self.skips.hopeless() {
            if work > WORK * options.cases.div_ceil(CASES) && self.full >= FEWEST.min(wanted) {
                break;
            }
            tries += 1;
            let mut source = Source::random(seed.wrapping_add(tries));
            let room_for_empty = (cases - self.full) * 4 <= wanted;
            let (instance, observation) = match self.attempt(&mut source, room_for_empty) {
                Ok(x) => x,
                Err(Reject(why)) => {
                    count(why);
                    continue;
                }
            };
            work += instance.graph.nodes.iter().flat_map(|n| &n.results).map(elements).sum::<usize>();
            if let Some(why) =
                observation.broken.as_ref().or(observation.no_body.as_ref()).filter(|_| !self.any_shape.is_empty())
            {
                count(why.clone());
                continue;
            }
            if let Some(why) = observation.no_meaning.as_ref().filter(|_| !self.strict) {
                self.skips.skip(observation.dtype, why);
                count(why.clone());
                meaningless.get_or_insert_with(|| source.into_choices());
                continue;
            }
            self.skips.compare(observation.dtype);
            cases += 1;
            let dtype = self.add(&instance, &observation);
            if let Some((failure, _)) = observation.against(claim(self.rule, dtype)) {
                if self.first.is_none() || failure.is_grave() {
                    self.first = Some((source.into_choices(), failure));
                }
                if failure.is_grave() {
                    break;
                }
            }
        }
        if self.first.is_none() && !self.skips.hopeless() {
            cases += self.more_of_each_type(options);
        }
        if self.first.is_none() && !self.skips.hopeless() {
            cases += self.sought(options);
        }
        // If the right side is undefined wherever the left side matches, the rule is wrong.
        if self.skips.hopeless() {
            self.first = meaningless.map(|choices| (choices, Failure::NoMeaning));
        }
        (cases, rejects)
    }

    /// Further instances of element types that the rule claims and that chance left out.
    fn more_of_each_type(&mut self, options: &Options) -> usize {
        if self.full == 0 || self.strict || self.rule.derived || !self.any_shape.is_empty() {
            return 0;
        }
        let mut cases = 0;
        let ways = self.hints.ways.len();
        for (dtype, way) in
            self.claimed_types().into_iter().flat_map(|d| (0..=ways).map(move |w| (d, w.checked_sub(1))))
        {
            if self.first.is_some() {
                break;
            }
            self.way.set(way);
            cases += self.more_of(dtype, way, options);
        }
        self.way.set(None);
        cases
    }

    /// Further instances of one element type, and of one way to satisfy the guards.
    fn more_of(&mut self, dtype: DType, way: Option<usize>, options: &Options) -> usize {
        let mut cases = 0;
        let first = 0x5eed << 32 | dtype as u64 | way.map_or(0, |w| (w as u64 + 1) << 40);
        let seed = seed_of(options, &self.rule.name).wrapping_add(first);
        for attempt in 0..TRIES_OF_A_TYPE {
            let found = match way {
                Some(way) => self.of_ways.get(&(dtype, way)).copied(),
                None => self.seen.get(&dtype).map(|s| s.full),
            };
            let hopeless = way.is_some() && attempt as usize >= TRIES_OF_A_WAY * (cases + 1);
            if found.unwrap_or(0) >= FEWEST_OF_A_TYPE || hopeless {
                break;
            }
            let mut source = Source::random(seed.wrapping_add(attempt << 8));
            // The type of a result need not be that of the operands.
            let main = [Some(dtype), None, Some(DType::F16), Some(dtype)][attempt as usize % 4];
            let focus = Focus { dtype: main, ..Focus::default() };
            let Ok(made) = self.focused(&mut source, true, focus) else { continue };
            let root = made.left.first().map(|v| made.graph.ty(*v).dtype);
            if root != Some(dtype) || !self.is_full(&made) {
                continue;
            }
            let Ok(seen) = observe(self.rule, &made) else { continue };
            if seen.no_meaning.is_some() {
                continue;
            }
            cases += 1;
            self.add(&made, &seen);
            if let Some((failure, _)) = seen.against(claim(self.rule, dtype)) {
                self.first = Some((source.into_choices(), failure));
                self.focus = focus;
                return cases;
            }
        }
        cases
    }

    /// The element types that the claims name, and those that were seen.
    fn claimed_types(&self) -> BTreeSet<DType> {
        let named = self.rule.claims.iter().flat_map(|c| &c.dtypes).copied();
        self.seen.keys().copied().chain(named).collect()
    }

    /// Whether what was verified says anything: enough instances for each type, and none of the
    /// right side's parts is arbitrary.
    fn meaningful(&mut self, full: &BTreeMap<DType, usize>, options: &Options) -> Status {
        if !self.any_shape.is_empty() {
            return Status::Verified;
        }
        // The claims of a rule `body => name` are derived too, and it is about the body as written.
        let types = if self.rule.derived { BTreeSet::new() } else { self.claimed_types() };
        let few = types.into_iter().find(|d| full.get(d).copied().unwrap_or(0) < FEWEST_OF_A_TYPE);
        if let Some(dtype) = few {
            let n = full.get(&dtype).copied().unwrap_or(0);
            let reason = format!(
                "only {n} instances without empty tensors were found in {dtype}, and {FEWEST_OF_A_TYPE} are the \
                 fewest that say anything; restrict the class to the types that the rule is about"
            );
            return Status::NotExercised { reason };
        }
        let mut unnoticed = Unnoticed::on(self.program, self.rule, &self.kept);
        let seed = seed_of(options, &self.rule.name) ^ 0x7ac;
        // What chance left out is searched for: each instance that notices a change is also one
        // that the rule must hold on.
        let (attempts, found) = self.attempts.get();
        let ways = (1 + self.hints.ways.len() as u64).min(MOST_CHANGES);
        let tries = TRIES_OF_A_CHANGE * ways * if is_rare(attempts, found) { MOST_OF_RARE } else { 1 };
        let mut constant = Constant::of(self.rule, &self.kept);
        for attempt in 0..tries {
            if unnoticed.is_empty() {
                break;
            }
            let mut source = Source::random(seed.wrapping_add(attempt << 20));
            let focus = self.focus_of_a_change(attempt);
            let Ok(made) = self.focused(&mut source, true, focus) else { continue };
            let varies = constant.vary(&made);
            if !unnoticed.notices(self.rule, &made) && !varies {
                continue;
            }
            let Ok(seen) = observe(self.rule, &made) else { continue };
            if varies {
                self.kept.push(made.clone());
                constant = Constant::of(self.rule, &self.kept);
            }
            let dtype = self.add(&made, &seen);
            if let Some((failure, _)) = seen.against(claim(self.rule, dtype)) {
                self.focus = focus;
                return self.refuted(source.into_choices(), failure);
            }
        }
        unnoticed.drop_equal(self.rule, &self.kept, self.hints.constants.empty);
        match unnoticed.message(self.rule, &self.kept) {
            Some(reason) => Status::Vacuous { reason },
            None => Status::Verified,
        }
    }

    /// The first element type for which the right side is less precise than its class allows.
    fn imprecise(&mut self, options: &Options) -> Option<(DType, Worse)> {
        // Both sides of a derived rule are the same body.
        for dtype in TYPES.into_iter().filter(|_| self.ensembles && !self.rule.derived) {
            let class = claim(self.rule, dtype);
            let rounds = matches!(class, Class::Rounds | Class::Approx { .. });
            // The body of an op may give the bits that its kernel does not give.
            let kernels = self.has_kernels(dtype);
            let judged = |s: &&mut Seen| (rounds && s.bits) || kernels;
            let mains = self.operand_types(dtype);
            let Some(seen) = self.seen.get_mut(&dtype).filter(judged) else { continue };
            for main in mains {
                let found = Ensembles {
                    program: self.program,
                    rule: self.rule,
                    hints: self.hints,
                    dtype,
                    main,
                    class,
                    seed: seed_of(options, &self.rule.name),
                    effort: Effort::default(),
                }
                .run();
                seen.bits |= found.apart;
                seen.finite_bits |= found.apart;
                if found.worse.is_some() {
                    seen.rounding = true;
                    seen.apart = seen.apart.max(found.beyond);
                    return found.worse.map(|w| (dtype, w));
                }
            }
        }
        None
    }

    /// The element types of operands whose results have this one: itself, and others where the rule
    /// takes several.
    fn operand_types(&self, dtype: DType) -> BTreeSet<DType> {
        let results = |i: &&Instance| i.left.iter().all(|v| i.graph.ty(*v).dtype == dtype);
        let has_casts = |i: &Instance| sides(self.rule, i).is_ok_and(|s| casts(&s.graph));
        if !self.kept.iter().filter(results).take(FEWEST).any(has_casts) {
            return BTreeSet::from([dtype]);
        }
        let found = self.kept.iter().filter(results).filter_map(operand_type).filter(|d| TYPES.contains(d));
        let found: BTreeSet<DType> = found.collect();
        // Of one type only, it is the rule's own.
        if found.len() > 1 { found } else { BTreeSet::from([dtype]) }
    }

    /// Whether an op has a kernel that rounds less often than its body, in the instances of a type.
    fn has_kernels(&self, dtype: DType) -> bool {
        let of_type = |i: &&Instance| i.left.iter().any(|v| i.graph.ty(*v).dtype == dtype);
        let kernels = |i: &Instance| sides(self.rule, i).is_ok_and(|s| has_kernels(&s.graph));
        self.kept.iter().filter(of_type).take(FEWEST).any(kernels)
    }

    /// An instance and its observation.
    fn attempt(&self, source: &mut Source, room_for_empty: bool) -> Result<(Instance, Observation), Reject> {
        let instance = self.instance(source, true)?;
        if !room_for_empty && !self.is_full(&instance) {
            return reject(EMPTY);
        }
        // Another example covers an operand of one element.
        let many = |v: &VarId| instance.env.tensors.get(v).is_some_and(|v| elements(instance.graph.ty(*v)) != 1);
        if !self.any_shape.is_empty() && !self.any_shape.iter().any(many) {
            return reject("the other operand of the region has one element");
        }
        let seen = observe(self.rule, &instance)?;
        Ok((instance, seen))
    }

    /// Records the observation of a compared instance; returns the element type of its first root.
    fn add(&mut self, instance: &Instance, seen: &Observation) -> DType {
        let full = self.is_full(instance);
        self.record(instance);
        if full {
            self.full += 1;
            for (at, taken) in &instance.branches {
                if let Some(n) = self.branches.get_mut(at).and_then(|b| b.get_mut(*taken)) {
                    *n += 1;
                }
            }
        }
        let dtype = seen.dtype.unwrap_or(DType::F32);
        let entry = self.seen.entry(dtype).or_default();
        entry.add(seen);
        if full {
            if let Some(way) = way_of(instance) {
                *self.of_ways.entry((dtype, way)).or_default() += 1;
            }
            entry.full += 1;
            if instance.distribution != Distribution::Far && self.kept.len() < KEPT {
                self.kept.push(instance.clone());
            }
        }
        if self.note.is_none()
            && let Some(d) = &seen.infinity
        {
            let (left, right) = d.shown();
            self.note = Some(format!("at infinities the sides differ: {left} on the left, {right} on the right"));
        }
        dtype
    }

    fn instance(&self, source: &mut Source, spread: bool) -> Result<Instance, Reject> {
        self.focused(source, spread, Focus::default())
    }

    fn focused(&self, source: &mut Source, spread: bool, focus: Focus) -> Result<Instance, Reject> {
        // Usually picks the alternative that was taken least, so that each is covered.
        let turn = RefCell::new(0usize);
        let wanted = |at: usize, n: usize| {
            if at == WAYS {
                return if spread { self.next_way() } else { None };
            }
            *turn.borrow_mut() += 1;
            let counts = self.branches.get(&at)?;
            let least = counts.iter().take(n).min()?;
            let most = counts.iter().max()?;
            if !spread || least == most { None } else { counts.iter().position(|c| c == least) }
        };
        let made = instance(self.program, self.rule, self.hints, source, focus, &wanted);
        let full = made.as_ref().is_ok_and(|m| self.is_full(m));
        let (attempts, found) = self.attempts.get();
        self.attempts.set((attempts + 1, found + usize::from(full)));
        let of_way = self.way.get().and_then(|w| self.ways.borrow().get(w).copied());
        let (attempts, found) = of_way.unwrap_or((attempts, found));
        let rare = !full && is_rare(attempts, found);
        let sought = rare.then(|| solved(self.program, self.rule, self.hints, source, focus, &self.effort)).flatten();
        let made = sought.map_or(made, Ok)?;
        if let Some(way) = way_of(&made).filter(|_| self.is_full(&made))
            && let Some(counts) = self.ways.borrow_mut().get_mut(way)
        {
            counts.1 += 1;
        }
        // A rule is never applied to an element type for which it claims nothing.
        let dtypes = made.left.iter().map(|v| made.graph.ty(*v).dtype);
        match dtypes.into_iter().find(|d| !Numerics::Fast.allows_rule(self.rule, *d)) {
            Some(d) => reject(format!("the rule claims nothing for {d}")),
            None => Ok(made),
        }
    }

    /// The way to satisfy the guards that is tried next: the one with the fewest instances, unless
    /// many attempts gave none.
    fn next_way(&self) -> Option<usize> {
        let mut ways = self.ways.borrow_mut();
        let least = |(_, (tried, found)): &(usize, &(usize, usize))| (*found, *tried);
        let open = ways.iter().enumerate().filter(|(_, (tried, found))| *tried < TRIES_OF_A_WAY * (found + 1));
        let next = self.way.get().or_else(|| open.min_by_key(least).map(|(i, _)| i))?;
        ways.get_mut(next)?.0 += 1;
        Some(next)
    }

    /// True if the instance shows what the rule does: its results have elements, and so have its
    /// operands unless a guard requires empty ones.
    fn is_full(&self, instance: &Instance) -> bool {
        let some = |v: &Value| elements(instance.graph.ty(*v)) > 0;
        let operands =
            instance.graph.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Input { .. } | NodeKind::Const(_)));
        let mut types = operands.flat_map(|n| &n.results);
        instance.left.iter().any(some) && (self.hints.constants.empty || types.all(|t| elements(t) > 0))
    }

    fn exercised(&self, cases: usize, rejects: &HashMap<String, usize>) -> Status {
        if self.full == 0 {
            let mut reasons: Vec<(&String, &usize)> = rejects.iter().collect();
            reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let shown: Vec<String> = reasons.iter().take(3).map(|(r, n)| format!("  {n} times: {r}")).collect();
            let guards: Vec<String> =
                self.rule.requires.iter().map(|g| format!("  guard: {}", show_expr(&self.rule.vars, g))).collect();
            let lines: Vec<String> = shown.into_iter().chain(guards).collect();
            let none = match cases {
                0 => "no instance of the left side was found that type-checks and satisfies the guards",
                _ => EMPTY,
            };
            let reason = format!("{none}, so this rule is not verified\n{}", lines.join("\n"));
            return Status::NotExercised { reason };
        }
        let missed: Vec<usize> = self.branches.values().map(|b| b.iter().filter(|n| **n == 0).count()).collect();
        match missed.iter().sum::<usize>() {
            0 => Status::Verified,
            n => Status::NotExercised {
                reason: format!(
                    "{n} of the pattern's alternatives never matched a legal instance, so they are not verified"
                ),
            },
        }
    }
}

/// How the instance satisfies the guards, if there are several ways.
fn way_of(made: &Instance) -> Option<usize> {
    made.branches.iter().find(|(at, _)| *at == WAYS).map(|(_, way)| *way)
}

/// The alternatives of a rule's patterns: the address of each list, and one count per alternative.
fn branches_of(rule: &Rule) -> HashMap<usize, Vec<usize>> {
    fn walk(pat: &Pat, out: &mut HashMap<usize, Vec<usize>>) {
        match pat {
            Pat::OneOf(pats) => {
                out.insert(pats.as_ptr() as usize, vec![0; pats.len()]);
                pats.iter().for_each(|p| walk(p, out));
            }
            Pat::Bind(_, p) | Pat::Typed(p, _) => walk(p, out),
            Pat::Node(n) => n.args.iter().for_each(|p| walk(p, out)),
            Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => {}
        }
    }
    let mut out = HashMap::new();
    rule.lhs.iter().for_each(|p| walk(p, &mut out));
    out
}
