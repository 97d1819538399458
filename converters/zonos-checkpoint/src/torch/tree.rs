//! From the Python value at the root of a `.pth` file to named tensors, JSON and notices.

use std::collections::HashSet;

use serde_json::{Map, Number};

use super::pickle::{Id, Pickle, Tensor, Value};

/// Deepest nesting of dictionaries and lists that is followed.
const MAX_DEPTH: usize = 64;
/// Values visited before a walk gives up: shared values are visited once per path to them.
const MAX_VISITS: usize = 4_000_000;
/// The levels under which training scripts keep the weights, in the order tried.
const WEIGHT_KEYS: [&str; 3] = ["model", "state_dict", "model_state_dict"];

/// A leaf of the state dictionary.
pub(crate) enum Leaf<'a> {
    Tensor(&'a Tensor),
    /// A tensor of the tar container, by its key.
    Reference(&'a str),
    /// Something that is not interpreted, by its Python name.
    Foreign(String),
}

pub(crate) struct Tree<'a> {
    pickle: &'a Pickle,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(pickle: &'a Pickle) -> Self {
        Self { pickle }
    }

    /// The dictionary that holds the weights and the dotted path to it: the one under `key` when
    /// given, else the innermost of `model`, `state_dict`, `model_state_dict` that holds tensors,
    /// else the root.
    ///
    /// The error lists the keys that exist.
    pub(crate) fn select(&self, key: Option<&str>) -> Result<(Id, String), String> {
        let root = self.pickle.root;
        if let Some(key) = key {
            let found = self
                .child(root, key)
                .or_else(|| {
                    key.split('.')
                        .try_fold(root, |at, part| self.child(at, part))
                })
                .filter(|&id| self.items(id).is_some() || self.module(id).is_some());
            return found.map(|id| (id, key.to_string())).ok_or_else(|| {
                match self.keys(root).as_slice() {
                    [] => "the file's root is not a dictionary".to_string(),
                    keys => format!("the keys are {}", keys.join(", ")),
                }
            });
        }
        let mut at = root;
        let mut path = String::new();
        for _ in 0..4 {
            let next = WEIGHT_KEYS.iter().find_map(|key| {
                let id = self.child(at, key)?;
                (self.is_branch(id) && self.holds_tensors(id)).then_some((*key, id))
            });
            let Some((key, id)) = next else { break };
            at = id;
            join(&mut path, key);
        }
        Ok((at, path))
    }

    /// Every leaf under `id` that is a tensor or foreign, by dotted name, in file order; a name set
    /// twice keeps its first place and its last value, as in Python.
    pub(crate) fn leaves(&self, id: Id) -> Result<Vec<(String, Leaf<'a>)>, String> {
        let mut out = Leaves::default();
        self.walk(id, &mut String::new(), 0, &mut out)?;
        Ok(out.list)
    }

    fn walk(
        &self,
        id: Id,
        path: &mut String,
        depth: usize,
        out: &mut Leaves<'a>,
    ) -> Result<(), String> {
        out.visits += 1;
        if depth > MAX_DEPTH || out.visits > MAX_VISITS {
            return Err(format!("values nested too deeply or too often at '{path}'"));
        }
        match self.pickle.get(id) {
            Value::Tensor(t) => out.add(path, Leaf::Tensor(t)),
            Value::Reference(key) => out.add(path, Leaf::Reference(key)),
            Value::Dict(items) => {
                for &(key, value) in items {
                    let Some(key) = self.pickle.text(key) else {
                        continue;
                    };
                    self.walk_child(&key, value, path, depth, out)?;
                }
            }
            Value::List(items) | Value::Tuple(items) => {
                for (i, &value) in items.iter().enumerate() {
                    self.walk_child(&i.to_string(), value, path, depth, out)?;
                }
            }
            Value::Object(object) => {
                if let Some(state) = self.module(id) {
                    self.walk_module(state, path, depth, out)?;
                } else if !object.items.is_empty() {
                    for &(key, value) in &object.items {
                        if let Some(key) = self.pickle.text(key) {
                            self.walk_child(&key, value, path, depth, out)?;
                        }
                    }
                } else {
                    out.add(path, Leaf::Foreign(object.class.to_string()));
                }
            }
            Value::Storage(s) => out.add(path, Leaf::Foreign(format!("torch.{}", s.class))),
            Value::Global { module, name } => {
                out.add(path, Leaf::Foreign(format!("{module}.{name}")));
            }
            Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::Bytes(_)
            | Value::Set(_) => {}
        }
        Ok(())
    }

    fn walk_child(
        &self,
        key: &str,
        value: Id,
        path: &mut String,
        depth: usize,
        out: &mut Leaves<'a>,
    ) -> Result<(), String> {
        let length = path.len();
        join(path, key);
        let done = self.walk(value, path, depth + 1, out);
        path.truncate(length);
        done
    }

    /// `torch.save(model)`: parameters, persistent buffers and submodules, as `state_dict()` names them.
    fn walk_module(
        &self,
        state: Id,
        path: &mut String,
        depth: usize,
        out: &mut Leaves<'a>,
    ) -> Result<(), String> {
        let transient: HashSet<_> = match self
            .child(state, "_non_persistent_buffers_set")
            .map(|id| self.pickle.get(id))
        {
            Some(Value::Set(items)) => items.iter().filter_map(|&i| self.pickle.text(i)).collect(),
            _ => HashSet::new(),
        };
        for part in ["_parameters", "_buffers", "_modules"] {
            let Some(items) = self.child(state, part).and_then(|id| self.items(id)) else {
                continue;
            };
            for &(key, value) in items {
                let Some(key) = self.pickle.text(key) else {
                    continue;
                };
                if part != "_buffers" || !transient.contains(&key) {
                    self.walk_child(&key, value, path, depth, out)?;
                }
            }
        }
        Ok(())
    }

    /// Everything plain, as JSON: tensors are left out, and so are dictionaries that held nothing
    /// else. Foreign objects outside of `weights` are added to `foreign` by dotted path.
    pub(crate) fn json(
        &self,
        weights: Id,
        foreign: &mut Vec<(String, String)>,
    ) -> serde_json::Value {
        let mut state = JsonWalk {
            weights,
            foreign,
            visits: 0,
        };
        self.to_json(self.pickle.root, &mut String::new(), 0, &mut state)
            .unwrap_or(serde_json::Value::Object(Map::new()))
    }

    fn to_json(
        &self,
        id: Id,
        path: &mut String,
        depth: usize,
        walk: &mut JsonWalk<'_>,
    ) -> Option<serde_json::Value> {
        walk.visits += 1;
        if depth > MAX_DEPTH || walk.visits > MAX_VISITS {
            return None;
        }
        use serde_json::Value as Json;
        let inside = walk.weights == id;
        let items: Vec<(String, Id)> = match self.pickle.get(id) {
            Value::None => return Some(Json::Null),
            Value::Bool(b) => return Some(Json::Bool(*b)),
            Value::Int(i) => return Some(Json::Number((*i).into())),
            // JSON has no NaN or infinity.
            Value::Float(f) => {
                return Some(
                    Number::from_f64(*f).map_or_else(|| Json::String(f.to_string()), Json::Number),
                );
            }
            Value::Str(s) => return Some(Json::String(s.to_string())),
            Value::Bytes(n) => return Some(Json::String(format!("<{n} bytes>"))),
            Value::Tensor(_) | Value::Reference(_) => return None,
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
                let mut list = Vec::new();
                for (i, &item) in items.iter().enumerate() {
                    let length = path.len();
                    join(path, &i.to_string());
                    let value = self.to_json(item, path, depth + 1, walk);
                    path.truncate(length);
                    list.extend(value);
                }
                return (!list.is_empty() || items.is_empty()).then_some(Json::Array(list));
            }
            Value::Dict(items) => self.text_keys(items),
            Value::Object(o) if !o.items.is_empty() => self.text_keys(&o.items),
            other => {
                let name = match other {
                    Value::Object(o) => o.class.to_string(),
                    Value::Global { module, name } => format!("{module}.{name}"),
                    _ => "torch storage".to_string(),
                };
                if !inside {
                    walk.foreign.push((path.clone(), name));
                }
                return None;
            }
        };
        let empty = items.is_empty();
        // The weights' own foreign objects are reported under the weights' names.
        let mut ignored = Vec::new();
        let foreign: &mut Vec<_> = if inside { &mut ignored } else { walk.foreign };
        let mut inner = JsonWalk {
            weights: walk.weights,
            foreign,
            visits: walk.visits,
        };
        let mut map = Map::new();
        for (key, value) in items {
            let length = path.len();
            join(path, &key);
            if let Some(value) = self.to_json(value, path, depth + 1, &mut inner) {
                map.insert(key, value);
            }
            path.truncate(length);
        }
        walk.visits = inner.visits;
        (!map.is_empty() || (empty && depth > 0)).then_some(Json::Object(map))
    }

    fn text_keys(&self, items: &[(Id, Id)]) -> Vec<(String, Id)> {
        items
            .iter()
            .filter_map(|&(k, v)| Some((self.pickle.text(k)?.to_string(), v)))
            .collect()
    }

    fn items(&self, id: Id) -> Option<&'a [(Id, Id)]> {
        match self.pickle.get(id) {
            Value::Dict(items) => Some(items),
            Value::Object(object) if !object.items.is_empty() => Some(&object.items),
            _ => None,
        }
    }

    /// The instance dictionary of a pickled `nn.Module`.
    fn module(&self, id: Id) -> Option<Id> {
        match self.pickle.get(id) {
            Value::Object(object) => object.state.filter(|&state| {
                self.child(state, "_parameters").is_some()
                    && self.child(state, "_modules").is_some()
            }),
            _ => None,
        }
    }

    fn is_branch(&self, id: Id) -> bool {
        self.items(id).is_some() || self.module(id).is_some()
    }

    fn child(&self, id: Id, key: &str) -> Option<Id> {
        // The last assignment wins, as in Python.
        self.items(id)?
            .iter()
            .rev()
            .find(|(k, _)| matches!(self.pickle.get(*k), Value::Str(s) if &**s == key))
            .map(|&(_, v)| v)
    }

    fn keys(&self, id: Id) -> Vec<String> {
        self.items(id)
            .unwrap_or_default()
            .iter()
            .filter_map(|&(k, _)| self.pickle.text(k))
            .take(40)
            .map(|k| k.to_string())
            .collect()
    }

    /// Whether a tensor can be reached from `id`; every value is looked at once.
    fn holds_tensors(&self, id: Id) -> bool {
        let mut seen = HashSet::new();
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            if !seen.insert(id) {
                continue;
            }
            match self.pickle.get(id) {
                Value::Tensor(_) | Value::Reference(_) => return true,
                Value::List(v) | Value::Tuple(v) => todo.extend(v),
                Value::Dict(items) => todo.extend(items.iter().map(|&(_, v)| v)),
                Value::Object(o) => {
                    todo.extend(o.items.iter().map(|&(_, v)| v));
                    if let Some(state) = self.module(id) {
                        todo.push(state);
                    }
                }
                _ => {}
            }
        }
        false
    }
}

#[derive(Default)]
struct Leaves<'a> {
    list: Vec<(String, Leaf<'a>)>,
    place: std::collections::HashMap<String, usize>,
    visits: usize,
}

impl<'a> Leaves<'a> {
    fn add(&mut self, path: &str, leaf: Leaf<'a>) {
        match self.place.get(path) {
            Some(&at) => self.list[at].1 = leaf,
            None => {
                self.place.insert(path.to_string(), self.list.len());
                self.list.push((path.to_string(), leaf));
            }
        }
    }
}

struct JsonWalk<'w> {
    weights: Id,
    foreign: &'w mut Vec<(String, String)>,
    visits: usize,
}

fn join(path: &mut String, part: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(part);
}
