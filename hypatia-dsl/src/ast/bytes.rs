//! Serialisation of a file's syntax tree: the embedded library is stored in this form, so that no
//! program parses it again.
//!
//! In: the tree of a text without syntax errors. Out: bytes, and the tree again. Invariant: the
//! bytes contain the version that wrote them and the hash of their text; with another version or
//! text they are refused, never misread.

use super::*;

/// The version that writes these bytes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl File {
    /// Serialises the tree of `text`.
    pub fn to_bytes(&self, text: &str) -> Result<Vec<u8>, String> {
        postcard::to_stdvec(&(VERSION, hash(text), self)).map_err(|e| format!("cannot serialize the syntax tree: {e}"))
    }

    /// Deserialises the tree of `text`, as the file `id`; or says why the bytes do not match.
    pub fn from_bytes(bytes: &[u8], text: &str, id: FileId) -> Result<File, String> {
        let wrong = |e| format!("its syntax tree cannot be read: {e}");
        let (version, rest): (&str, _) = postcard::take_from_bytes(bytes).map_err(wrong)?;
        if version != VERSION {
            return Err(format!("its syntax tree has version {version}; version {VERSION} is expected"));
        }
        let (of, rest): (u64, _) = postcard::take_from_bytes(rest).map_err(wrong)?;
        if of != hash(text) {
            return Err("its syntax tree was made from a different text".into());
        }
        let mut file: File = postcard::from_bytes(rest).map_err(wrong)?;
        file.set_file(id);
        Ok(file)
    }
}

/// FNV-1a. It distinguishes versions of one file; it is not a protection against attackers.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Sets the file of every span in a tree.
trait SetFile {
    fn set_file(&mut self, file: FileId);
}

impl SetFile for Span {
    fn set_file(&mut self, file: FileId) {
        self.file = file;
    }
}

impl SetFile for FileId {
    fn set_file(&mut self, file: FileId) {
        *self = file;
    }
}

impl<T: SetFile> SetFile for Vec<T> {
    fn set_file(&mut self, file: FileId) {
        self.iter_mut().for_each(|x| x.set_file(file));
    }
}

impl<T: SetFile> SetFile for Option<T> {
    fn set_file(&mut self, file: FileId) {
        self.iter_mut().for_each(|x| x.set_file(file));
    }
}

impl<T: SetFile> SetFile for Box<T> {
    fn set_file(&mut self, file: FileId) {
        (**self).set_file(file);
    }
}

impl<A: SetFile, B: SetFile> SetFile for (A, B) {
    fn set_file(&mut self, file: FileId) {
        self.0.set_file(file);
        self.1.set_file(file);
    }
}

impl<T> SetFile for Spanned<T> {
    fn set_file(&mut self, file: FileId) {
        self.span.set_file(file);
    }
}

/// Types without spans.
macro_rules! without_spans {
    ($($ty:ty)*) => { $(impl SetFile for $ty { fn set_file(&mut self, _: FileId) {} })* };
}

/// A new field or variant does not compile until it is listed here.
macro_rules! with_spans {
    ($($ty:ident { $($field:ident)* })*) => { $(impl SetFile for $ty {
        fn set_file(&mut self, file: FileId) {
            let $ty { $($field),* } = self;
            $($field.set_file(file);)*
        }
    })* };
}

macro_rules! one_of {
    ($($ty:ident { $($variant:ident($($part:ident)*))* })*) => { $(impl SetFile for $ty {
        fn set_file(&mut self, file: FileId) {
            match self {
                $($ty::$variant($($part),*) => { $($part.set_file(file);)* })*
            }
        }
    })* };
}

without_spans! { String bool f64 u32 u64 UnaryOp BinaryOp }

with_spans! {
    File { id edition doc items broken comments }
    Item { doc kind span }
    Path { parts span }
    Use { path glob }
    RuleSet { name settings }
    Setting { key value }
    ScalarParam { name kind }
    Scalar { name params result body device grads }
    Generic { name bound }
    OpParam { variadic name ty optional default }
    TypeExpr { dtype dims span }
    OpGrad { names body lets }
    Op { name generics params results body lets grad builtin settings requires }
    ResultType { variadic ty }
    Pattern { name params body }
    Binder { name family }
    Rule { path binders lhs both_ways rhs types lets requires prefer saves classes }
    Saves { amount unit }
    ClassExpr { class bounds dtypes }
    Kernel { name pattern backend requires prefer tune settings classes }
    Family { name members }
    Contract { name clauses }
    Clause { must rule count at }
    Test { name target statements }
    Expr { kind span }
    Arg { name value }
}

one_of! {
    ItemKind { Use(x) RuleSet(x) Scalar(x) Op(x) Pattern(x) Rule(x) Kernel(x) Test(x) Family(x) Contract(x) }
    ParamType { Tensor(x) Named(x) }
    DimExpr { Dim(x) Rest(x span) }
    Backend { Cublaslt(x) Template(x) Pointwise(x) Rowwise(x) Composed(x) Tiled(x) }
    Expect { Compare(x) Error(x) Fires(path yes) Matches(path yes) Equal(x) Becomes(x) }
}

impl SetFile for TestStatement {
    fn set_file(&mut self, file: FileId) {
        match self {
            TestStatement::Input { constant: _, name, ty, value } => {
                name.set_file(file);
                ty.set_file(file);
                value.set_file(file);
            }
            TestStatement::Given(given) => given.set_file(file),
            TestStatement::Expect(expect) => expect.set_file(file),
        }
    }
}

impl SetFile for ExprKind {
    fn set_file(&mut self, file: FileId) {
        match self {
            ExprKind::Number { value: _, integer: _ }
            | ExprKind::Str(_)
            | ExprKind::Bool(_)
            | ExprKind::Hole
            | ExprKind::Absent => {}
            ExprKind::Path(path) => path.set_file(file),
            ExprKind::Optional(name) => name.set_file(file),
            ExprKind::Call { callee, optional: _, types, args } => {
                callee.set_file(file);
                types.set_file(file);
                args.set_file(file);
            }
            ExprKind::Result(e, _) | ExprKind::Unary(_, e) => e.set_file(file),
            ExprKind::Binary(_, a, b) | ExprKind::Index(a, b) | ExprKind::Else(a, b) | ExprKind::Near(a, b) => {
                a.set_file(file);
                b.set_file(file);
            }
            ExprKind::List(all) | ExprKind::Set(all) | ExprKind::Alternatives(all) | ExprKind::Tuple(all) => {
                all.set_file(file);
            }
            ExprKind::Comprehension { element, name, over, condition } => {
                element.set_file(file);
                name.set_file(file);
                over.set_file(file);
                condition.set_file(file);
            }
            ExprKind::Spread(e) => e.set_file(file),
            ExprKind::If(a, b, c) => {
                a.set_file(file);
                b.set_file(file);
                c.set_file(file);
            }
            ExprKind::Bind(name, e) => {
                name.set_file(file);
                e.set_file(file);
            }
            ExprKind::Typed(e, ty) => {
                e.set_file(file);
                ty.set_file(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::parse::parse;
    use crate::source::{SourceFile, SourceMap};

    /// The tree of a file with every construct of the language, as file number `before`.
    fn tree(before: u32) -> (String, File) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/pass/constructs.hyp");
        let text = std::fs::read_to_string(path).unwrap();
        let mut sources = SourceMap::new();
        for _ in 0..before {
            sources.add(SourceFile { name: "other".into(), path: None, text: "".into(), embedded: false });
        }
        let file = SourceFile { name: "t.hyp".into(), path: None, text: text.as_str().into(), embedded: false };
        let id = sources.add(file);
        let (file, diagnostics) = parse(&sources, id);
        assert!(diagnostics.is_empty() && file.items.len() > 20);
        (text, file)
    }

    #[test]
    fn what_is_read_is_what_was_written_with_its_places_in_the_new_file() {
        let (text, file) = tree(0);
        let read = File::from_bytes(&file.to_bytes(&text).unwrap(), &text, FileId(3)).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", tree(3).1));
    }

    #[test]
    fn bytes_of_another_text_or_version_are_refused() {
        let (text, file) = tree(0);
        let bytes = file.to_bytes(&text).unwrap();
        let why = |bytes: &[u8], text: &str| File::from_bytes(bytes, text, FileId(0)).unwrap_err();
        assert!(why(&bytes, &text.replace("edition", "Edition")).contains("a different text"));
        let other = postcard::to_stdvec(&("0.0.9", hash(&text), &file)).unwrap();
        assert!(why(&other, &text).contains("has version 0.0.9"));
        assert!(why(&bytes[..bytes.len() - 1], &text).contains("cannot be read"));
        assert!(why(&[], &text).contains("cannot be read"));
    }
}
