//! `hypatia explain CODE`: explains a diagnostic code in detail.

use hypatia_dsl::codes;
use hypatia_dsl::diag::Code;
use hypatia_tensor::error::{Error, Result};
use serde_json::{Value, json};

use super::Exit;
use super::output::write_stdout;

/// Explains the code that `text` names, or lists all for `codes`, as text or as JSON. `None` if it
/// names no code (then it is a model).
pub fn run(text: &str, json: bool) -> Option<Result<Exit>> {
    if text == "codes" {
        if json {
            let rows: Vec<Value> =
                codes::all().map(|r| json!({"code": r.code.to_string(), "title": r.title})).collect();
            write_stdout(&format!("{:#}\n", json!({ "codes": rows })));
        } else {
            write_stdout(&codes::all().map(|r| format!("{}  {}\n", r.code, r.title)).collect::<String>());
        }
        return Some(Ok(Exit::Ok));
    }
    let code = Code::parse(text)?;
    Some(match (codes::find(code), codes::explain(code)) {
        (Some(row), Some(explanation)) => {
            if json {
                let value = json!({
                    "code": row.code.to_string(), "title": row.title, "text": row.text, "wrong": row.wrong,
                     "right": row.right,
                });
                write_stdout(&format!("{value:#}\n"));
            } else {
                write_stdout(&explanation);
            }
            Ok(Exit::Ok)
        }
        _ => Err(Error::Input(format!("there is no code {code}; `hypatia explain codes` lists all codes"))),
    })
}
