//! The architectures whose graph is known, and what of them no operation computes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelError;
use super::json::{Keys, shorten};

/// The decoders whose graph is known. They differ in defaults and biases only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `LlamaForCausalLM`
    Llama,
    /// `MistralForCausalLM`
    Mistral,
    /// `Qwen2ForCausalLM`
    Qwen2,
}

impl Family {
    const ALL: [Self; 3] = [Self::Llama, Self::Mistral, Self::Qwen2];

    /// The name in `architectures`.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
        }
    }

    /// The name in `model_type`.
    #[must_use]
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
        }
    }
}

impl Keys<'_> {
    fn unsupported(&self, what: String, why: &str) -> ModelError {
        ModelError::Unsupported { model: self.model.to_owned(), what, why: why.to_owned() }
    }
}

/// `architectures` decides; without it `model_type` does.
pub(super) fn of(keys: &Keys<'_>) -> Result<Family, ModelError> {
    let named = match keys.map.get("architectures") {
        Some(Value::Array(names)) if !names.is_empty() => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            if let Some(family) = Family::ALL.into_iter().find(|family| names.contains(&family.architecture())) {
                activation(keys)?;
                return Ok(family);
            }
            names.join(", ")
        }
        _ => {
            let kind = keys.text("model_type")?.unwrap_or_default();
            if let Some(family) = Family::ALL.into_iter().find(|family| family.model_type() == kind) {
                activation(keys)?;
                return Ok(family);
            }
            kind.to_owned()
        }
    };
    let found = if named.is_empty() { "model of no stated architecture".to_owned() } else { shorten(&named) };
    let supported = Family::ALL.map(Family::architecture).join(", ");
    Err(ModelError::Architecture { model: keys.model.to_owned(), found, supported })
}

fn activation(keys: &Keys<'_>) -> Result<(), ModelError> {
    match keys.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => {
            let what = format!("`hidden_act` {}", shorten(other));
            return Err(keys.unsupported(what, "fused_mlp computes SwiGLU, whose activation is silu"));
        }
    }
    if keys.flag("mlp_bias", false)? {
        return Err(keys.unsupported("`mlp_bias`".to_owned(), "fused_mlp has no bias"));
    }
    Ok(())
}
