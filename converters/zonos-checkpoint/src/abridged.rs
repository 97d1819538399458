//! Metadata short enough to read: a vocabulary or a chat template fills many screens.

use serde_json::{Map, Value};

use crate::shown::{grouped, shown};

/// Characters of a text that are shown.
const MOST_CHARACTERS: usize = 80;
/// Elements of a list, and keys of an object, that are shown.
const MOST_ELEMENTS: usize = 64;

/// `value` on one line, with long texts and lists cut, and how long they are.
pub(crate) fn abridged(value: &Value) -> String {
    shown(&cut(value).to_string()).into_owned()
}

fn cut(value: &Value) -> Value {
    match value {
        Value::String(text) => cut_text(text).into(),
        Value::Array(list) => {
            let mut out: Vec<Value> = list.iter().take(MOST_ELEMENTS).map(cut).collect();
            if list.len() > MOST_ELEMENTS {
                out.push(format!("… ({} values)", grouped(list.len() as u64)).into());
            }
            out.into()
        }
        Value::Object(fields) => {
            let mut out: Map<String, Value> = fields
                .iter()
                .take(MOST_ELEMENTS)
                .map(|(key, value)| (cut_text(key), cut(value)))
                .collect();
            if fields.len() > MOST_ELEMENTS {
                let all = format!("({} keys)", grouped(fields.len() as u64));
                out.insert("…".into(), all.into());
            }
            out.into()
        }
        other => other.clone(),
    }
}

fn cut_text(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => {
            let all = text.chars().count() as u64;
            format!("{}… ({} characters)", &text[..end], grouped(all))
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_short_stays_and_what_is_long_tells_its_length() {
        let short = json!({ "a": "x".repeat(80), "b": [1, null, { "c": 1.5 }] });
        assert_eq!(abridged(&short), short.to_string());
        let long = json!({
            "text": "ü".repeat(3 << 20),
            "nested": { "list": vec![7; 1000] },
            "k".repeat(5000): true,
        });
        let told = abridged(&long);
        assert!(told.len() < 1000, "{} bytes", told.len());
        let cut = format!("\"{}… (3,145,728 characters)\"", "ü".repeat(80));
        assert!(told.contains(&cut), "{told}");
        assert!(told.contains("7,\"… (1,000 values)\"]"), "{told}");
        assert!(told.contains("k… (5,000 characters)\":true"), "{told}");
        let keys: Map<String, Value> = (0..100).map(|i| (i.to_string(), i.into())).collect();
        assert!(abridged(&keys.into()).ends_with("\"…\":\"(100 keys)\"}"));
    }
}
