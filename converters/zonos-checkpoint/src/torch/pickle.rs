//! A pickle parser that builds values and never runs anything.
//!
//! Pickle is a small stack language (CPython, `Lib/pickletools.py`). The parser keeps every value
//! in one arena and passes indices around, so that memo references share instead of copying, later
//! `APPEND`/`SETITEM`/`BUILD` opcodes change the value everybody sees (as in Python), and a deep or
//! cyclic value can neither overflow the stack nor explode when it is dropped.
//!
//! A handful of callables is interpreted: the tensor rebuilders of `torch._utils`, the ordered and
//! default dictionaries, plain container types, `torch.Size`, and `_codecs.encode` (how protocol 2
//! writes bytes). Whatever else a pickle names becomes a [`Value::Object`] that remembers the name
//! of its class and the plain state it was given.

use std::collections::HashMap;
use std::rc::Rc;

use crate::tensor::MAX_RANK;

/// Index of a value in [`Pickle::values`].
pub(crate) type Id = u32;

/// Longest module, class or storage name.
const MAX_NAME: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    /// A Python `bytes` or `bytearray`; the contents are of no use here.
    Bytes(usize),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global {
        module: Rc<str>,
        name: Rc<str>,
    },
    Storage(Rc<Storage>),
    /// A persistent id that is not a storage: the tar container names whole tensors this way.
    Reference(Rc<str>),
    Tensor(Tensor),
    /// A Python object that is not interpreted.
    Object(Object),
}

/// An uninterpreted Python object: what it is called, and the data that was put into it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) class: Rc<str>,
    /// The argument of `BUILD`, usually the instance dictionary.
    pub(crate) state: Option<Id>,
    /// Items set on it, when it is a kind of dictionary.
    pub(crate) items: Vec<(Id, Id)>,
}

/// A storage named by a persistent id `("storage", class, key, location, count[, view])`.
/// The location (`cpu`, `cuda:0`) says where the tensor once lived and is ignored.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) class: Rc<str>,
    pub(crate) key: Rc<str>,
    /// Elements (bytes for an `UntypedStorage`).
    pub(crate) count: usize,
    /// Offset of a view into the storage, in elements (early legacy files).
    pub(crate) view_offset: usize,
}

/// A call of one of torch's tensor rebuilders.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) storage: Id,
    /// First element within the storage.
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
    /// `torch.<name>` given explicitly by `_rebuild_tensor_v3`.
    pub(crate) dtype: Option<Rc<str>>,
}

/// A parsed pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub(crate) values: Vec<Value>,
    pub(crate) root: Id,
    /// Bytes read, up to and including `STOP`.
    pub(crate) consumed: usize,
}

impl Pickle {
    pub(crate) fn get(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    /// Parses one pickle at the start of `input`; the error is the reason.
    pub(crate) fn parse(input: &[u8]) -> Result<Self, String> {
        Machine::new(input).run()
    }

    pub(crate) fn text(&self, id: Id) -> Option<Rc<str>> {
        match self.get(id) {
            Value::Str(s) => Some(s.clone()),
            Value::Int(i) => Some(i.to_string().into()),
            _ => None,
        }
    }

    pub(crate) fn size(&self, id: Id) -> Option<usize> {
        match self.get(id) {
            Value::Int(i) => usize::try_from(*i).ok(),
            _ => None,
        }
    }
}

struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Stack heights at which a `MARK` stands.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Container elements and values that may still be made: bounds the memory of a pickle by a
    /// multiple of its own size whatever its opcodes say.
    budget: usize,
}

impl<'a> Machine<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            budget: input.len().saturating_mul(8).saturating_add(4096),
        }
    }

    fn run(mut self) -> Result<Pickle, String> {
        loop {
            let position = self.at;
            let op = self.byte()?;
            if op == b'.' {
                let root = self.pop()?;
                return Ok(Pickle {
                    values: self.values,
                    root,
                    consumed: self.at,
                });
            }
            self.step(op)
                .map_err(|e| format!("pickle byte {position}: {e}"))?;
        }
    }

    fn step(&mut self, op: u8) -> Result<(), String> {
        match op {
            0x80 => {
                let version = self.byte()?;
                if version > 5 {
                    return Err(format!("pickle protocol {version}, known are 0 to 5"));
                }
            }
            0x95 => {
                self.take(8)?; // FRAME: a buffering hint
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                // POP also discards a mark when nothing was pushed after it.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'I' => {
                let line = self.line()?;
                let value = match line {
                    "00" => Value::Bool(false),
                    "01" => Value::Bool(true),
                    text => self.parse_int(text)?,
                };
                self.push(value)?;
            }
            b'L' => {
                let line = self.line()?;
                let value = self.parse_int(line.strip_suffix('L').unwrap_or(line))?;
                self.push(value)?;
            }
            b'J' => {
                let v = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(v.into()))?;
            }
            b'K' => {
                let v = self.byte()?;
                self.push(Value::Int(v.into()))?;
            }
            b'M' => {
                let v = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(v.into()))?;
            }
            0x8a => {
                let n = self.byte()? as usize;
                self.long(n)?;
            }
            0x8b => {
                let n = self.len32()?;
                self.long(n)?;
            }
            b'F' => {
                let line = self.line()?;
                let v = line
                    .parse::<f64>()
                    .map_err(|_| format!("bad float {line:?}"))?;
                self.push(Value::Float(v))?;
            }
            b'G' => {
                let v = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(v))?;
            }
            b'S' => {
                let line = self.line()?;
                let text = line.trim_matches(['\'', '"']).into();
                self.push(Value::Str(text))?;
            }
            b'V' => {
                let text = self.line()?.into();
                self.push(Value::Str(text))?;
            }
            b'U' | 0x8c => {
                let n = self.byte()? as usize;
                self.text(n)?;
            }
            b'T' | b'X' => {
                let n = self.len32()?;
                self.text(n)?;
            }
            0x8d => {
                let n = self.len64()?;
                self.text(n)?;
            }
            b'C' => {
                let n = self.byte()? as usize;
                self.blob(n)?;
            }
            b'B' => {
                let n = self.len32()?;
                self.blob(n)?;
            }
            0x8e | 0x96 => {
                let n = self.len64()?;
                self.blob(n)?;
            }
            b')' => self.push(Value::Tuple(Vec::new()))?,
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))?;
            }
            0x85..=0x87 => {
                let n = (op - 0x84) as usize;
                let start = self
                    .stack
                    .len()
                    .checked_sub(n)
                    .filter(|&start| self.marks.last().is_none_or(|&m| m <= start))
                    .ok_or_else(underflow)?;
                let items = self.stack.split_off(start);
                self.push(Value::Tuple(items))?;
            }
            b']' => self.push(Value::List(Vec::new()))?,
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b'd' => {
                let items = self.pop_mark()?;
                let pairs = pairs(&items)?;
                self.push(Value::Dict(pairs))?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(vec![(key, value)])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                let pairs = pairs(&items)?;
                self.set_items(pairs)?;
            }
            0x8f => self.push(Value::Set(Vec::new()))?,
            0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::Set(items))?;
            }
            b'g' => {
                let line = self.line()?;
                let key = line.parse().map_err(|_| format!("bad memo key {line:?}"))?;
                self.recall(key)?;
            }
            b'h' => {
                let key = self.byte()?.into();
                self.recall(key)?;
            }
            b'j' => {
                let key = u32::from_le_bytes(self.array()?);
                self.recall(key)?;
            }
            b'p' => {
                let line = self.line()?;
                let key = line.parse().map_err(|_| format!("bad memo key {line:?}"))?;
                self.remember(key)?;
            }
            b'q' => {
                let key = self.byte()?.into();
                self.remember(key)?;
            }
            b'r' => {
                let key = u32::from_le_bytes(self.array()?);
                self.remember(key)?;
            }
            0x94 => {
                let key = u32::try_from(self.memo.len()).map_err(|_| "memo too large")?;
                self.remember(key)?;
            }
            b'c' => {
                let module = self.name_line()?;
                let name = self.name_line()?;
                self.push(Value::Global { module, name })?;
            }
            0x93 => {
                let name = self.pop_name()?;
                let module = self.pop_name()?;
                self.push(Value::Global { module, name })?;
            }
            b'R' => {
                let args = self.pop()?;
                let callable = self.pop()?;
                let made = self.call(callable, args, 0)?;
                self.stack.push(made);
            }
            b'i' => {
                // INST: class by text, arguments since the mark
                let module = self.name_line()?;
                let name = self.name_line()?;
                self.pop_mark()?;
                self.push(object(&module, &name))?;
            }
            b'o' => {
                let items = self.pop_mark()?;
                let class = items.first().copied().ok_or_else(underflow)?;
                let made = self.instance(class);
                self.push(made)?;
            }
            0x81 => {
                let args = self.pop()?;
                let class = self.pop()?;
                let made = self.construct(class, args)?;
                self.stack.push(made);
            }
            0x92 => {
                self.pop()?; // keyword arguments
                let args = self.pop()?;
                let class = self.pop()?;
                let made = self.construct(class, args)?;
                self.stack.push(made);
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                // On a dictionary or a tensor the state holds attributes (an OrderedDict's
                // `_metadata`, a parameter's flags): no part of the values.
                if let Value::Object(object) = &mut self.values[target as usize] {
                    object.state = Some(state);
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.persistent(id)?;
            }
            b'P' => {
                let key = self.name_line()?;
                self.push(Value::Reference(key))?;
            }
            0x97 => self.push(object("buffer", "out-of-band"))?,
            0x98 => {} // READONLY_BUFFER
            0x82 => {
                self.take(1)?;
                self.push(object("copyreg", "extension"))?;
            }
            0x83 => {
                self.take(2)?;
                self.push(object("copyreg", "extension"))?;
            }
            0x84 => {
                self.take(4)?;
                self.push(object("copyreg", "extension"))?;
            }
            other => return Err(format!("unknown opcode 0x{other:02x}")),
        }
        Ok(())
    }

    // Reading

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.input.len());
        let end = end.ok_or("pickle ends in the middle of a value")?;
        let bytes = &self.input[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| underflow())
    }

    fn len32(&mut self) -> Result<usize, String> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn len64(&mut self) -> Result<usize, String> {
        usize::try_from(u64::from_le_bytes(self.array()?))
            .map_err(|_| "length beyond memory".to_string())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.input[self.at..];
        let end = rest
            .iter()
            .position(|&b| b == b'\n')
            .ok_or("pickle ends in the middle of a line")?;
        self.at += end + 1;
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| "text is not UTF-8")?;
        Ok(line.strip_suffix('\r').unwrap_or(line))
    }

    fn name_line(&mut self) -> Result<Rc<str>, String> {
        let line = self.line()?;
        if line.len() > MAX_NAME {
            return Err("a class name of more than 1024 characters".into());
        }
        Ok(line.into())
    }

    fn text(&mut self, n: usize) -> Result<(), String> {
        let bytes = self.take(n)?;
        let text = String::from_utf8_lossy(bytes).into();
        self.push(Value::Str(text))
    }

    fn blob(&mut self, n: usize) -> Result<(), String> {
        self.take(n)?;
        self.push(Value::Bytes(n))
    }

    /// A two's complement little-endian integer of `n` bytes.
    fn long(&mut self, n: usize) -> Result<(), String> {
        let bytes = self.take(n)?;
        let value = if n <= 8 {
            let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) {
                0xff
            } else {
                0
            };
            let mut wide = [fill; 8];
            wide[..n].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        } else {
            object("builtins", "int wider than 64 bits")
        };
        self.push(value)
    }

    fn parse_int(&self, text: &str) -> Result<Value, String> {
        match text.trim().parse::<i64>() {
            Ok(v) => Ok(Value::Int(v)),
            Err(_)
                if !text.is_empty()
                    && text
                        .trim_start_matches('-')
                        .bytes()
                        .all(|b| b.is_ascii_digit()) =>
            {
                Ok(object("builtins", "int wider than 64 bits"))
            }
            Err(_) => Err(format!(
                "bad integer {:?}",
                text.chars().take(40).collect::<String>()
            )),
        }
    }

    // Stack and memo

    fn charge(&mut self, n: usize) -> Result<(), String> {
        self.budget = self
            .budget
            .checked_sub(n)
            .ok_or("pickle builds far more values than its size explains")?;
        Ok(())
    }

    fn make(&mut self, value: Value) -> Result<Id, String> {
        let name = match &value {
            Value::Object(object) => object.class.len() / 4,
            _ => 0,
        };
        self.charge(1 + name)?;
        let id = Id::try_from(self.values.len()).map_err(|_| "too many values")?;
        self.values.push(value);
        Ok(id)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        let id = self.make(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(underflow());
        }
        self.stack.pop().ok_or_else(underflow)
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(underflow)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let height = self.marks.pop().ok_or("no mark on the stack")?;
        if height > self.stack.len() {
            return Err(underflow());
        }
        Ok(self.stack.split_off(height))
    }

    fn recall(&mut self, key: u32) -> Result<(), String> {
        let id = *self
            .memo
            .get(&key)
            .ok_or_else(|| format!("memo entry {key} was never stored"))?;
        self.stack.push(id);
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn pop_name(&mut self) -> Result<Rc<str>, String> {
        let id = self.pop()?;
        match self.get(id) {
            Value::Str(s) if s.len() <= MAX_NAME => Ok(s.clone()),
            Value::Str(_) => Err("a class name of more than 1024 characters".into()),
            _ => Err("a class name that is not a string".into()),
        }
    }

    fn get(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.values[target as usize] {
            Value::List(list) | Value::Set(list) => list.extend(items),
            Value::Object(_) => {}
            _ => return Err("append to something that is not a list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Id, Id)>) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.values[target as usize] {
            Value::Dict(dict) => dict.extend(items),
            Value::Object(object) => object.items.extend(items),
            _ => return Err("item assignment to something that is not a dictionary".into()),
        }
        Ok(())
    }

    // Objects

    /// The tuple behind `id`, copied and paid for.
    fn tuple(&mut self, id: Id) -> Result<Vec<Id>, String> {
        let items = match self.get(id) {
            Value::Tuple(items) | Value::List(items) => items.clone(),
            _ => return Err("call arguments that are not a tuple".into()),
        };
        self.charge(items.len())?;
        Ok(items)
    }

    fn instance(&self, class: Id) -> Value {
        match self.get(class) {
            Value::Global { module, name } => object(module, name),
            Value::Object(o) => Value::Object(Object {
                class: o.class.clone(),
                state: None,
                items: Vec::new(),
            }),
            _ => object("builtins", "object"),
        }
    }

    /// `NEWOBJ`: dictionaries and lists are made this way too.
    fn construct(&mut self, class: Id, args: Id) -> Result<Id, String> {
        if let Value::Global { module, name } = self.get(class)
            && container(module, name).is_some()
        {
            return self.call(class, args, 0);
        }
        let made = self.instance(class);
        self.make(made)
    }

    /// `REDUCE`: interprets the few callables a state dictionary needs.
    fn call(&mut self, callable: Id, args: Id, depth: usize) -> Result<Id, String> {
        let (module, name) = match self.get(callable) {
            Value::Global { module, name } => (module.clone(), name.clone()),
            _ => {
                let made = self.instance(callable);
                return self.make(made);
            }
        };
        if let Some(kind) = container(&module, &name) {
            return self.build_container(kind, args);
        }
        match (&*module, &*name) {
            ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor" | "_rebuild_tensor_v3") => {
                let args = self.tuple(args)?;
                match self.rebuild_tensor(&args, &name)? {
                    Some(tensor) => self.make(Value::Tensor(tensor)),
                    None => self.make(object(&module, &name)),
                }
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                let args = self.tuple(args)?;
                args.first().copied().ok_or_else(underflow)
            }
            // A tensor subclass or a tensor with attributes: (rebuilder, type, arguments, state).
            ("torch._tensor", "_rebuild_from_type_v2") if depth == 0 => {
                let args = self.tuple(args)?;
                match args[..] {
                    [rebuild, _, inner, ..] => self.call(rebuild, inner, depth + 1),
                    _ => Err(underflow()),
                }
            }
            // Protocol 2 writes bytes as text and an encoding.
            ("_codecs", "encode") => {
                let args = self.tuple(args)?;
                let length = match args.first().map(|&id| self.get(id)) {
                    Some(Value::Str(s)) => s.chars().count(),
                    _ => 0,
                };
                self.make(Value::Bytes(length))
            }
            _ => self.make(object(&module, &name)),
        }
    }

    fn build_container(&mut self, kind: Container, args: Id) -> Result<Id, String> {
        let args = self.tuple(args)?;
        let first = match kind {
            Container::DefaultDict => args.get(1),
            _ => args.first(),
        };
        let items = match first.map(|&id| self.get(id)) {
            Some(Value::List(v) | Value::Tuple(v) | Value::Set(v)) => v.clone(),
            Some(Value::Dict(d)) => {
                let dict = d.clone();
                self.charge(dict.len())?;
                return self.make(Value::Dict(dict));
            }
            _ => Vec::new(),
        };
        self.charge(items.len())?;
        let value = match kind {
            Container::List => Value::List(items),
            Container::Tuple => Value::Tuple(items),
            Container::Set => Value::Set(items),
            Container::Bytes => Value::Bytes(0),
            Container::Dict | Container::DefaultDict => {
                let mut dict = Vec::with_capacity(items.len());
                for pair in items {
                    match self.get(pair) {
                        Value::Tuple(kv) | Value::List(kv) if kv.len() == 2 => {
                            dict.push((kv[0], kv[1]));
                        }
                        _ => {
                            return Err("a dictionary made from something that is not pairs".into());
                        }
                    }
                }
                Value::Dict(dict)
            }
        };
        self.make(value)
    }

    /// `(storage, offset, size, stride, ...)`, v3 with a dtype in seventh place. `None` when the
    /// first argument is not a storage this parser understands.
    fn rebuild_tensor(&mut self, args: &[Id], function: &str) -> Result<Option<Tensor>, String> {
        let [storage, offset, size, stride, ..] = *args else {
            return Err(format!("{function} with {} arguments", args.len()));
        };
        if !matches!(self.get(storage), Value::Storage(_)) {
            return Ok(None);
        }
        let Some(offset) = self.size_of(offset) else {
            return Err(format!("{function} with an offset that is not a count"));
        };
        let shape = self.dims(size)?;
        let strides = self.dims(stride)?;
        let dtype = if function == "_rebuild_tensor_v3" {
            match args.get(6).map(|&id| self.get(id)) {
                Some(Value::Global { name, .. }) => Some(name.clone()),
                _ => return Ok(None),
            }
        } else {
            None
        };
        Ok(Some(Tensor {
            storage,
            offset,
            shape,
            strides,
            dtype,
        }))
    }

    fn size_of(&self, id: Id) -> Option<usize> {
        match self.get(id) {
            Value::Int(i) => usize::try_from(*i).ok(),
            _ => None,
        }
    }

    fn dims(&self, id: Id) -> Result<Vec<usize>, String> {
        let items = match self.get(id) {
            Value::Tuple(items) | Value::List(items) => items,
            _ => return Err("a tensor size that is not a tuple".into()),
        };
        if items.len() > MAX_RANK {
            return Err(format!("a tensor of {} dimensions", items.len()));
        }
        items
            .iter()
            .map(|&i| {
                self.size_of(i)
                    .ok_or_else(|| "a negative or missing tensor size".to_string())
            })
            .collect()
    }

    fn persistent(&mut self, id: Id) -> Result<(), String> {
        let value = match self.get(id) {
            Value::Tuple(items) => {
                let items = items.clone();
                self.charge(items.len())?;
                match items.first().map(|&i| self.get(i)) {
                    Some(Value::Str(tag)) if &**tag == "storage" => self.storage(&items)?,
                    // The tar container: the first item is the value itself.
                    Some(_) => {
                        self.stack.push(items[0]);
                        return Ok(());
                    }
                    None => return Err("an empty persistent id".into()),
                }
            }
            Value::Str(s) if s.len() <= MAX_NAME => Value::Reference(s.clone()),
            Value::Int(i) => Value::Reference(i.to_string().into()),
            _ => object("pickle", "persistent id"),
        };
        self.push(value)
    }

    fn storage(&self, items: &[Id]) -> Result<Value, String> {
        let [_, class, key, _location, count, ..] = *items else {
            return Err("a storage reference that is too short".into());
        };
        let class = match self.get(class) {
            Value::Global { name, .. } => name.clone(),
            Value::Str(s) if s.len() <= MAX_NAME => s.clone(),
            _ => return Err("a storage without a class".into()),
        };
        let key: Rc<str> = match self.get(key) {
            Value::Str(s) if s.len() <= MAX_NAME => s.clone(),
            Value::Int(i) => i.to_string().into(),
            _ => return Err("a storage without a key".into()),
        };
        let count = self
            .size_of(count)
            .ok_or("a storage whose element count is not a count")?;
        let view_offset = match items.get(5).map(|&i| self.get(i)) {
            Some(Value::Tuple(view)) if view.len() == 3 => self
                .size_of(view[1])
                .ok_or("a storage view whose offset is not a count")?,
            _ => 0,
        };
        Ok(Value::Storage(Rc::new(Storage {
            class,
            key,
            count,
            view_offset,
        })))
    }
}

#[derive(Clone, Copy)]
enum Container {
    Dict,
    DefaultDict,
    List,
    Tuple,
    Set,
    Bytes,
}

/// The container types that are read as data.
fn container(module: &str, name: &str) -> Option<Container> {
    Some(match (module, name) {
        ("collections", "OrderedDict" | "Counter") => Container::Dict,
        ("collections", "defaultdict") => Container::DefaultDict,
        ("builtins" | "__builtin__", "dict") => Container::Dict,
        ("builtins" | "__builtin__", "list") => Container::List,
        ("builtins" | "__builtin__", "tuple") | ("torch", "Size") => Container::Tuple,
        ("builtins" | "__builtin__", "set" | "frozenset") => Container::Set,
        ("builtins" | "__builtin__", "bytearray" | "bytes") => Container::Bytes,
        _ => return None,
    })
}

fn object(module: &str, name: &str) -> Value {
    Value::Object(Object {
        class: format!("{module}.{name}").into(),
        state: None,
        items: Vec::new(),
    })
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, String> {
    if !items.len().is_multiple_of(2) {
        return Err("a dictionary key without a value".into());
    }
    Ok(items.chunks_exact(2).map(|kv| (kv[0], kv[1])).collect())
}

fn underflow() -> String {
    "stack underflow".into()
}
