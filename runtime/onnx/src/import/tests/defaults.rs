//! Attributes written out with their default values: every attribute of every imported op may
//! appear in a node.
//!
//! The defaults come from ONNX's own schemas; tools/onnx_defaults.py writes them.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use serde_json::Value;

use super::super::onnx::proto::attribute_proto::AttributeType;
use super::super::onnx::proto::{AttributeProto, ModelProto, NodeProto};
use super::super::{Options, load_bytes, supported};
use super::ops::{Case, cases, check};
use super::{models, program};
use hypatia_pipeline::FOLDER;
use hypatia_tensor::error::Error;

/// Default values by op, version of its definition, and attribute name.
type Defaults = BTreeMap<String, BTreeMap<i64, BTreeMap<String, BTreeMap<String, Value>>>>;

fn defaults() -> Defaults {
    serde_json::from_str(&std::fs::read_to_string(models().join("onnx_defaults.json")).unwrap()).unwrap()
}

fn attribute(name: &str, value: &BTreeMap<String, Value>) -> AttributeProto {
    let mut a = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
    let (field, v) = value.first_key_value().unwrap();
    let ty = match field.as_str() {
        "i" => {
            a.i = v.as_i64();
            AttributeType::Int
        }
        "f" => {
            a.f = v.as_f64().map(|f| f as f32);
            AttributeType::Float
        }
        "s" => {
            a.s = v.as_str().map(|s| s.as_bytes().to_vec());
            AttributeType::String
        }
        "ints" => {
            a.ints = v.as_array().unwrap().iter().filter_map(Value::as_i64).collect();
            AttributeType::Ints
        }
        other => panic!("a default in the field {other}"),
    };
    a.r#type = Some(ty as i32);
    a
}

/// Writes out the attributes that the node omits; true if there are any.
fn spell_out(node: &mut NodeProto, opset: i64, defaults: &Defaults) -> bool {
    let imported = node.domain().is_empty() && supported().iter().any(|r| r.op == node.op_type());
    let versions = defaults.get(node.op_type()).filter(|_| imported);
    let Some((_, values)) = versions.and_then(|v| v.range(..=opset).next_back()) else { return false };
    let before = node.attribute.len();
    for (name, value) in values {
        if node.attribute.iter().all(|a| a.name() != name) {
            node.attribute.push(attribute(name, value));
        }
    }
    node.attribute.len() > before
}

/// The model with all default attributes written out, whether there are any, and the attributes
/// that it then has.
fn spelled(bytes: &[u8], defaults: &Defaults) -> (Vec<u8>, bool, Vec<(String, String)>) {
    let mut model = ModelProto::decode(bytes).unwrap();
    let opset = model.opset_import.iter().find(|o| o.domain().is_empty()).map_or(0, |o| o.version());
    let (mut any, mut all) = (false, Vec::new());
    for node in &mut model.graph.as_mut().unwrap().node {
        any |= spell_out(node, opset, defaults);
        all.extend(node.attribute.iter().map(|a| (node.op_type().to_string(), a.name().to_string())));
    }
    (model.encode_to_vec(), any, all)
}

#[test]
fn attributes_may_state_their_defaults() {
    let defaults = defaults();
    let (mut seen, mut failed) = (BTreeSet::new(), Vec::new());
    for (name, case) in cases(&models().join("ops.npz")) {
        let (model, any, all) = spelled(&case.model, &defaults);
        seen.extend(all);
        if any && let Err(e) = check(&name, &Case { model, ..case }) {
            failed.push(format!("{name}: {e}"));
        }
    }
    // The node tests of onnx: what is imported without these attributes is imported with them.
    let archive = super::nodes::archive().is_file();
    for (name, model, constants) in if archive { super::nodes::files() } else { Vec::new() } {
        let fixed = Options { constants, ..Options::default() };
        let load = |bytes: &[u8]| {
            load_bytes(bytes, &name, program(), &Options::default(), &FOLDER)
                .or_else(|_| load_bytes(bytes, &name, program(), &fixed, &FOLDER))
        };
        let (with, any, all) = spelled(&model, &defaults);
        if load(&model).is_err() {
            continue;
        }
        seen.extend(all);
        if any && let Err(e) = load(&with) {
            failed.push(e.to_string());
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    // Every attribute with a default has appeared in a model.
    let known = |op: &str| defaults.get(op).and_then(|v| v.last_key_value()).map(|(_, values)| values.keys().cloned());
    let missing: Vec<(&str, String)> = supported()
        .iter()
        .flat_map(|row| known(row.op).into_iter().flatten().map(|name| (row.op, name)))
        .filter(|(op, name)| !seen.contains(&(op.to_string(), name.clone())))
        .collect();
    assert!(missing.is_empty() || !archive, "no model has these: {missing:?}");
}

#[test]
fn what_differs_from_a_default_is_not_passed_over() {
    let case = cases(&models().join("ops.npz")).remove("family_unet_18").unwrap();
    let mut model = ModelProto::decode(&case.model[..]).unwrap();
    let node = model.graph.as_mut().unwrap().node.iter_mut().find(|n| n.op_type() == "Resize").unwrap();
    node.attribute.push(AttributeProto {
        name: Some("unheard_of".into()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(0),
        ..AttributeProto::default()
    });
    let refused = load_bytes(&model.encode_to_vec(), "resize", program(), &Options::default(), &FOLDER).err();
    assert!(
        matches!(&refused, Some(Error::Unsupported { message, .. }) if message.contains("unheard_of")),
        "{refused:?}"
    );
}
