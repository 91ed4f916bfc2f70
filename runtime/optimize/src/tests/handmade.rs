//! A small Program built by hand, so that tests of the optimiser do not depend on the compiler of
//! `.hyp` files.

use std::sync::Arc;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::Kind;
use hypatia_dsl::ir::*;
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};

fn var(name: &str, sort: Sort) -> Var {
    Var { name: name.into(), sort }
}

fn any_type() -> TypePat {
    TypePat { dtype: DTypePat::Any, prefix: vec![], rest: Some(RestPat::Any), suffix: vec![] }
}

fn tensor(name: &str) -> Param {
    Param { name: name.into(), kind: ParamKind::Tensor { ty: any_type(), optional: false, variadic: false } }
}

fn attr(name: &str, ty: AttrType) -> Param {
    Param { name: name.into(), kind: ParamKind::Attr { ty, default: None } }
}

fn op(builtin: BuiltinOp, params: Vec<Param>) -> OpDef {
    let vars = params
        .iter()
        .map(|p| {
            let sort = match p.kind {
                ParamKind::Tensor { variadic: true, .. } => Sort::Tensors,
                ParamKind::Tensor { .. } => Sort::Tensor,
                ParamKind::Term => Sort::Term,
                ParamKind::Attr { .. } => Sort::Attr,
            };
            var(&p.name, sort)
        })
        .collect();
    OpDef {
        name: builtin.name().into(),
        doc: String::new(),
        origin: Origin::default(),
        vars,
        params,
        bounds: vec![],
        results: vec![any_type()],
        variadic_result: builtin == BuiltinOp::Split,
        requires: vec![],
        body: OpBody::Builtin(builtin),
        grad: None,
        cost: CostFormulas::default(),
        domain: None,
    }
}

fn ruleset(name: &str) -> RuleSetDef {
    RuleSetDef {
        name: name.into(),
        doc: String::new(),
        origin: Origin::default(),
        iterations: None,
        nodes: (1000, 100),
        steps: None,
    }
}

/// A rule in ruleset `set` with only its two sides.
pub fn rule(set: u32, name: &str, vars: &[(&str, Sort)], lhs: Vec<Pat>, rhs: Vec<Build>) -> Rule {
    Rule {
        name: name.into(),
        base_name: name.split('[').next().unwrap_or(name).into(),
        ruleset: RuleSetId(set),
        doc: String::new(),
        origin: Origin::default(),
        vars: vars.iter().map(|(n, s)| var(n, *s)).collect(),
        lhs,
        rhs,
        lets: vec![],
        requires: vec![],
        prefer: vec![],
        saves: None,
        claims: vec![],
        pointwise: false,
        derived: false,
    }
}

/// Pattern of an application.
pub fn pn(head: Head, args: Vec<Pat>, attrs: Vec<AttrPat>) -> Pat {
    Pat::Node(NodePat { head, args, rest: None, attrs, output: 0 })
}

/// Built application.
pub fn bn(head: Head, args: Vec<Build>, attrs: Vec<AExpr>) -> Build {
    Build::Node(BuildNode { head, args: args.into_iter().map(BuildArg::One).collect(), attrs, output: 0 })
}

/// Pattern variable.
pub fn v(i: u32) -> Pat {
    Pat::Var(VarId(i))
}

/// Built variable.
pub fn b(i: u32) -> Build {
    Build::Var(VarId(i))
}

/// The program.
pub struct Handmade {
    /// The program.
    pub program: Program,
}

impl Handmade {
    /// Builtins, some defined scalars, the rulesets `fold`, `canon`, `fuse` (0, 1, 2) and the gemm
    /// rules.
    pub fn new() -> Handmade {
        let mut program = Program::default();
        for s in BuiltinScalar::ALL {
            let params = s.params().iter().enumerate().map(|(i, k)| (format!("p{i}"), *k)).collect();
            program.scalars.push(ScalarDef {
                name: s.name().into(),
                doc: String::new(),
                origin: Origin::default(),
                params,
                result: s.result(),
                body: ScalarBody::Builtin(*s),
                grads: vec![],
                device: None,
            });
        }
        use BuiltinOp::*;
        program.ops.extend([
            op(Matmul, vec![tensor("a"), tensor("b")]),
            op(
                Gemm,
                vec![
                    tensor("a"),
                    tensor("b"),
                    Param { name: "e".into(), kind: ParamKind::Term },
                    attr("to", AttrType::DType),
                ],
            ),
            op(Transpose, vec![tensor("x"), attr("perm", AttrType::Ints)]),
            op(Reshape, vec![tensor("x"), attr("shape", AttrType::Dims)]),
            op(Cast, vec![tensor("x"), attr("to", AttrType::DType)]),
            op(Mean, vec![tensor("x"), attr("axes", AttrType::Axes), attr("keepdims", AttrType::Bool)]),
            op(Split, vec![tensor("x"), attr("axis", AttrType::Axis), attr("sizes", AttrType::Dims)]),
            op(
                Concat,
                vec![
                    Param {
                        name: "xs".into(),
                        kind: ParamKind::Tensor { ty: any_type(), optional: false, variadic: true },
                    },
                    attr("axis", AttrType::Axis),
                ],
            ),
        ]);
        program.rulesets = vec![ruleset("fold"), ruleset("canon"), ruleset("fuse")];
        let mut made = Handmade { program };
        let (x, call) = (TermNode::Param(0), |s, args: &[u32]| TermNode::Call {
            scalar: s,
            args: args.iter().map(|a| TermId(*a)).collect(),
        });
        let lit = |v: f64| TermNode::Lit(Literal(v));
        let s = |made: &Handmade, b| made.s(b);
        use BuiltinScalar as B;
        let relu = vec![x.clone(), lit(0.0), call(s(&made, B::Max), &[0, 1])];
        made.scalar("relu", relu);
        let sigmoid = vec![
            x.clone(),
            call(s(&made, B::Neg), &[0]),
            call(s(&made, B::Exp), &[1]),
            lit(1.0),
            call(s(&made, B::Add), &[3, 2]),
            call(s(&made, B::Div), &[3, 4]),
        ];
        let sigmoid = made.scalar("sigmoid", sigmoid);
        let silu = vec![x, call(sigmoid, &[0]), call(s(&made, B::Mul), &[0, 1])];
        let silu = made.scalar("silu", silu);
        made.fuse_rules(&["relu", "sigmoid", "silu", "tanh", "exp", "neg"], &[B::Add, B::Sub, B::Mul, B::Max]);
        // fold::silu: x * sigmoid(x) => silu(x), for tensors and for terms.
        let pattern =
            pn(Head::Scalar(made.s(B::Mul)), vec![v(0), pn(Head::Scalar(sigmoid), vec![v(0)], vec![])], vec![]);
        let mut fold = rule(
            0,
            "fold::silu",
            &[("x", Sort::Tensor)],
            vec![pattern],
            vec![bn(Head::Scalar(silu), vec![b(0)], vec![])],
        );
        fold.pointwise = true;
        fold.derived = true;
        made.program.rules.push(fold);
        made
    }

    /// In an `Arc`.
    pub fn arc(self) -> Arc<Program> {
        Arc::new(self.program)
    }

    /// Id of a builtin scalar.
    pub fn s(&self, b: BuiltinScalar) -> ScalarId {
        self.program.builtin_scalar(b).unwrap()
    }

    /// Id of a builtin op.
    pub fn o(&self, b: BuiltinOp) -> OpId {
        self.program.builtin_op(b).unwrap()
    }

    /// Adds a defined scalar of one number; its last node is the result.
    pub fn scalar(&mut self, name: &str, nodes: Vec<TermNode>) -> ScalarId {
        let roots = vec![TermId(nodes.len() as u32 - 1)];
        self.program.scalars.push(ScalarDef {
            name: name.into(),
            doc: String::new(),
            origin: Origin::default(),
            params: vec![("x".into(), Kind::Number)],
            result: Kind::Number,
            body: ScalarBody::Term(Term { nodes, roots }),
            grads: vec![],
            device: None,
        });
        ScalarId(self.program.scalars.len() as u32 - 1)
    }

    fn fuse_rules(&mut self, unary: &[&str], binary: &[BuiltinScalar]) {
        let (matmul, gemm) = (Head::Op(self.o(BuiltinOp::Matmul)), Head::Op(self.o(BuiltinOp::Gemm)));
        let acc = || Build::Node(BuildNode { head: Head::Acc, args: vec![], attrs: vec![], output: 0 });
        let dtype_a = AExpr::Fact(Fact::DType, VarId(0));
        let vars = [
            ("a", Sort::Tensor),
            ("b", Sort::Tensor),
            ("e", Sort::Term),
            ("d", Sort::Attr),
            ("mm", Sort::Tensor),
            ("t", Sort::Tensor),
            ("f", Sort::Term),
        ];
        let start = bn(gemm, vec![b(0), b(1), acc()], vec![dtype_a]);
        self.program.rules.push(rule(2, "fuse::start", &vars, vec![pn(matmul, vec![v(0), v(1)], vec![])], vec![start]));
        let d = || vec![AttrPat::Var(VarId(3))];
        let to = || vec![AExpr::Var(VarId(3))];
        let product = |e: u32| pn(gemm, vec![v(0), v(1), v(e)], d());
        for g in unary {
            let g = self.program.find_scalar(g).unwrap();
            let name = format!("fuse::unary[{}]", self.program.scalar(g).name);
            let lhs = pn(Head::Scalar(g), vec![product(2)], vec![]);
            let rhs = bn(gemm, vec![b(0), b(1), bn(Head::Scalar(g), vec![b(2)], vec![])], to());
            self.program.rules.push(rule(2, &name, &vars, vec![lhs], vec![rhs]));
        }
        for g in binary {
            let head = Head::Scalar(self.s(*g));
            let read = || bn(Head::In(InView::Broadcast), vec![b(5)], vec![]);
            let mm = || Pat::Bind(VarId(4), Box::new(product(2)));
            let orders = if g.commutes() { 1 } else { 2 };
            for order in 0..orders {
                let (name, pats, args) = if order == 0 {
                    ("operand", vec![mm(), v(5)], vec![b(2), read()])
                } else {
                    ("operand_left", vec![v(5), mm()], vec![read(), b(2)])
                };
                let rhs = bn(gemm, vec![b(0), b(1), bn(head, args, vec![])], to());
                let name = format!("fuse::{name}[{}]", g.name());
                let mut r = rule(2, &name, &vars, vec![pn(head, pats, vec![])], vec![rhs]);
                let shape = |i: u32| AExpr::Fact(Fact::Shape, VarId(i));
                r.requires.push(AExpr::Binary(
                    BinaryOp::Eq,
                    Box::new(AExpr::Call(AFn::Broadcast, vec![shape(4), shape(5)])),
                    Box::new(shape(4)),
                ));
                let one_use = AExpr::Binary(
                    BinaryOp::Eq,
                    Box::new(AExpr::Fact(Fact::Uses, VarId(4))),
                    Box::new(AExpr::Value(AttrValue::Dim(1.into()))),
                );
                let other = AExpr::Not(Box::new(AExpr::SameAccumulator(VarId(5), VarId(0), VarId(1))));
                r.prefer.push(AExpr::Binary(
                    BinaryOp::Or,
                    Box::new(AExpr::Fact(Fact::Const, VarId(5))),
                    Box::new(AExpr::Binary(BinaryOp::And, Box::new(one_use), Box::new(other))),
                ));
                self.program.rules.push(r);
            }
            let rhs = bn(gemm, vec![b(0), b(1), bn(head, vec![b(2), b(6)], vec![])], to());
            let lhs = pn(head, vec![product(2), product(6)], vec![]);
            self.program.rules.push(rule(2, &format!("fuse::both[{}]", g.name()), &vars, vec![lhs], vec![rhs]));
        }
    }
}
