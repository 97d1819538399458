//! Typed access to a JSON object that knows which keys nobody asked for.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// An object of the configuration. A key that is `null` counts as left out.
pub(super) struct Fields<'a> {
    json: Option<&'a Map<String, Value>>,
    place: String,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Fields<'a> {
    /// `json` may be left out altogether; `place` is how messages call it.
    pub(super) fn new(json: Option<&'a Value>, place: impl Into<String>) -> Result<Self, String> {
        let place = place.into();
        let json = json.filter(|json| !json.is_null());
        let object = json.and_then(Value::as_object);
        match json {
            Some(other) if object.is_none() => {
                Err(format!("{place}: expected a JSON object, found {other}"))
            }
            _ => Ok(Self {
                json: object,
                place,
                asked: RefCell::default(),
            }),
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(name);
        self.json?.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> String {
        format!("{}.{name}: expected {expected}, found {found}", self.place)
    }

    /// A whole number.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<usize>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        // Whole numbers may be written with a point, as Python writes a quotient.
        let whole = value
            .as_f64()
            .filter(|x| x.fract() == 0.0 && (0.0..=1e15).contains(x));
        let found = value.as_u64().or(whole.map(|x| x as u64));
        found
            .and_then(|n| usize::try_from(n).ok())
            .map(Some)
            .ok_or_else(|| self.wrong(name, "a whole number", value))
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, name: &'static str) -> Result<Option<f64>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = value.as_f64().filter(|x| *x > 0.0 && x.is_finite());
        found
            .map(Some)
            .ok_or_else(|| self.wrong(name, "a number above 0", value))
    }

    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = value.as_bool();
        found
            .map(Some)
            .ok_or_else(|| self.wrong(name, "true or false", value))
    }

    pub(super) fn text(&self, name: &'static str) -> Result<Option<&'a str>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = value.as_str();
        found
            .map(Some)
            .ok_or_else(|| self.wrong(name, "a word", value))
    }

    pub(super) fn list(&self, name: &'static str) -> Result<Option<&'a [Value]>, String> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = value.as_array().map(Vec::as_slice);
        found
            .map(Some)
            .ok_or_else(|| self.wrong(name, "a list", value))
    }

    /// One of the words that this build knows; the first when left out.
    pub(super) fn one_of(
        &self,
        name: &'static str,
        known: &[&'static str],
    ) -> Result<&'static str, String> {
        let Some(value) = self.get(name) else {
            return Ok(known[0]);
        };
        let found = known.iter().find(|word| value.as_str() == Some(word));
        found
            .copied()
            .ok_or_else(|| self.wrong(name, &format!("one of {known:?}"), value))
    }

    /// Keys that nobody asked for, with the place in front.
    pub(super) fn unknown(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let keys = self.json.into_iter().flat_map(Map::keys);
        keys.filter(|key| !asked.contains(key.as_str()))
            .map(|key| format!("{}.{key}", self.place))
            .collect()
    }

    /// As [`unknown`](Self::unknown), in sentences.
    pub(super) fn not_used(&self) -> impl Iterator<Item = String> {
        let keys = self.unknown().into_iter();
        keys.map(|key| format!("{key} is not known to this build, and not used"))
    }

    /// What tensors and JSON say about one number: the tensors decide, and the JSON may not
    /// contradict them.
    pub(super) fn agreed(
        &self,
        name: &'static str,
        shape: Option<(usize, &str)>,
    ) -> Result<Option<usize>, String> {
        let written = self.number(name)?;
        match (shape, written) {
            (Some((found, tensor)), Some(written)) if found != written => Err(format!(
                "{}.{name} is {written}, but tensor '{tensor}' says {found}",
                self.place
            )),
            (Some((found, _)), _) => Ok(Some(found)),
            (None, written) => Ok(written),
        }
    }

    /// As [`agreed`](Self::agreed), for a number that must come from somewhere.
    pub(super) fn needed(
        &self,
        name: &'static str,
        shape: Option<(usize, &str)>,
    ) -> Result<usize, String> {
        self.agreed(name, shape)?.ok_or_else(|| {
            format!(
                "{}.{name}: neither the JSON nor a tensor tells it",
                self.place
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_nobody_asked_for_are_listed() {
        let json = json!({"a": 1, "b": null, "c": 2.0, "d": "x"});
        let fields = Fields::new(Some(&json), "head").unwrap();
        assert_eq!(fields.number("a"), Ok(Some(1)));
        assert_eq!(fields.number("b"), Ok(None));
        assert_eq!(fields.number("c"), Ok(Some(2)));
        assert_eq!(fields.unknown(), ["head.d"]);
        assert!(fields.number("d").unwrap_err().contains("head.d"));
        assert!(fields.unknown().is_empty());
    }

    #[test]
    fn tensors_decide_and_json_may_not_contradict() {
        let json = json!({"dim": 48});
        let fields = Fields::new(Some(&json), "x").unwrap();
        assert_eq!(fields.needed("dim", Some((48, "t.weight"))), Ok(48));
        assert_eq!(fields.needed("dim", None), Ok(48));
        assert_eq!(fields.needed("other", Some((3, "t"))), Ok(3));
        let clash = fields.needed("dim", Some((40, "t.weight"))).unwrap_err();
        assert!(
            clash.contains("x.dim is 48") && clash.contains("'t.weight' says 40"),
            "{clash}"
        );
        assert!(fields.needed("none", None).unwrap_err().contains("x.none"));
    }

    #[test]
    fn nonsense_is_refused() {
        for (value, check) in [(json!([1]), "object"), (json!(3), "object")] {
            let error = Fields::new(Some(&value), "m").err().unwrap();
            assert!(error.contains(check), "{error}");
        }
        let json = json!({"n": -1, "f": "0.5", "w": "mean"});
        let fields = Fields::new(Some(&json), "m").unwrap();
        assert!(fields.number("n").is_err());
        assert!(fields.positive("f").is_err());
        assert_eq!(fields.one_of("w", &["sum", "mean"]), Ok("mean"));
        assert!(fields.one_of("w", &["sum"]).unwrap_err().contains("m.w"));
    }
}
