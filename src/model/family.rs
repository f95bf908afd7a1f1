//! The architectures whose graph is known.

use serde_json::Value;

use super::ModelError;
use super::json::{Keys, shorten};

/// An architecture. Llama, Mistral and Qwen2 have one graph and differ in defaults and biases only; the two kinds of BERT
/// differ in what follows the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Gpt2,
    BertMaskedLm,
    Bert,
}

/// The name in `architectures`, that in `model_type`, and the family. Where only a `model_type` is given, the last row with
/// it counts.
const KNOWN: [(&str, &str, Family); 6] = [
    ("LlamaForCausalLM", "llama", Family::Llama),
    ("MistralForCausalLM", "mistral", Family::Mistral),
    ("Qwen2ForCausalLM", "qwen2", Family::Qwen2),
    ("GPT2LMHeadModel", "gpt2", Family::Gpt2),
    ("BertForMaskedLM", "bert", Family::BertMaskedLm),
    ("BertModel", "bert", Family::Bert),
];

/// The model types whose configurations have the same keys: a file of one may carry the other's `model_type`.
const ALIKE: [&str; 3] = ["llama", "mistral", "qwen2"];

/// `architectures` decides; without it `model_type` does. A `model_type` whose configuration has other keys is an error.
pub(super) fn of(keys: &Keys<'_>) -> Result<Family, ModelError> {
    let kind = keys.text("model_type")?;
    let named = match keys.map.get("architectures") {
        Some(Value::Array(names)) if !names.is_empty() => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            if let Some((name, own, family)) = KNOWN.into_iter().find(|(name, ..)| names.contains(name)) {
                let fits = |kind: &str| kind == own || [kind, own].iter().all(|kind| ALIKE.contains(kind));
                return match kind.filter(|kind| !fits(kind)) {
                    None => Ok(family),
                    Some(other) => {
                        Err(keys.value("model_type", other, format!("`{own}`, as the architecture {name} says")))
                    }
                };
            }
            names.join(", ")
        }
        _ => {
            let kind = kind.unwrap_or_default();
            if let Some((.., family)) = KNOWN.into_iter().rev().find(|(_, known, _)| *known == kind) {
                return Ok(family);
            }
            kind.to_owned()
        }
    };
    let stated = !named.is_empty();
    let found = if named.is_empty() { "model of no stated architecture".to_owned() } else { shorten(&named) };
    let supported = KNOWN.map(|(name, ..)| name).join(", ");
    Err(ModelError::Architecture { model: keys.model.to_owned(), found, supported, stated })
}
