//! The subset of Python's pickle that state dicts are written in, read without executing anything.
//!
//! Opcodes: the standard library's `pickletools`, protocols 2 to 5. An opcode or a name (`GLOBAL`) that is not listed here is an
//! error. Objects lie in one vector and refer to each other by index, so that depth and cycles cost nothing.

use crate::error::shown;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// More than the pickles of large models with optimizer state have (about 40 opcodes a tensor).
const MAX_OPCODES: usize = 1_000_000;

/// What the stack, the memo and the objects hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A value that weights do not need: `None`, a float, bytes, an integer beyond 64 bits, a data type.
    Plain,
    Int(i64),
    Text(&'a str),
    Global(Global),
    /// Index of an [`Object`].
    Object(usize),
}

#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    /// A `dict` or `OrderedDict`.
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage(Storage<'a>),
    Tensor(Tensor<'a>),
    /// A list, a set or an object of plain values, whose content weights do not need.
    Inert,
}

/// The elements behind tensors: the entry `data/KEY` of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub dtype: Dtype,
    pub key: &'a str,
    pub elements: i64,
}

/// A view of a storage as the file describes it, not checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor<'a> {
    pub storage: Storage<'a>,
    /// In elements.
    pub offset: i64,
    /// The tuple of extents.
    pub shape: Value<'a>,
    /// The tuple of strides, in elements.
    pub strides: Value<'a>,
}

/// The names that a file may use, and what they stand for here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    RebuildTensor,
    RebuildParameter,
    OrderedDict,
    Size,
    Storage(Dtype),
    /// A class or function that gives plain values.
    Inert,
}

impl Global {
    fn of(module: &str, name: &str) -> Option<Value<'static>> {
        let global = match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Self::RebuildParameter,
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch", "Size") => Self::Size,
            ("torch", "device") | ("collections", "Counter") | ("argparse", "Namespace") => Self::Inert,
            // How protocols 2 and 3 write sets and bytes.
            ("__builtin__" | "builtins", "set") | ("_codecs", "encode") => Self::Inert,
            ("torch", name) => match name.strip_suffix("Storage") {
                Some(element) => Self::Storage(dtype_of(element)?),
                None => return is_dtype(name).then_some(Value::Plain),
            },
            _ => return None,
        };
        Some(Value::Global(global))
    }
}

/// The element type of `torch.<element>Storage`.
fn dtype_of(element: &str) -> Option<Dtype> {
    Some(match element {
        "Double" => Dtype::F64,
        "Float" => Dtype::F32,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::BOOL,
        _ => return None,
    })
}

fn is_dtype(name: &str) -> bool {
    const NAMES: [&str; 10] =
        ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];
    NAMES.contains(&name)
}

/// What a pickle holds.
#[derive(Debug)]
pub(super) struct Unpickled<'a> {
    pub objects: Vec<Object<'a>>,
    pub root: Value<'a>,
}

impl<'a> Unpickled<'a> {
    pub(super) fn object(&self, value: Value<'a>) -> Option<&Object<'a>> {
        if let Value::Object(index) = value { self.objects.get(index) } else { None }
    }
}

/// Reads a pickle.
///
/// # Errors
/// Where it goes wrong (in bytes) and how: it ends early, is not valid, or needs what is not allowed.
pub(super) fn unpickle(bytes: &[u8]) -> Result<Unpickled<'_>, String> {
    let mut machine = Machine {
        bytes,
        position: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
        objects: Vec::new(),
    };
    for _ in 0..MAX_OPCODES {
        let start = machine.position;
        match machine.run_opcode() {
            Ok(None) => (),
            Ok(Some(root)) => return Ok(Unpickled { objects: machine.objects, root }),
            Err(reason) => return Err(format!("byte {start}: {reason}")),
        }
    }
    Err(format!("has more than {MAX_OPCODES} opcodes"))
}

struct Machine<'a> {
    bytes: &'a [u8],
    position: usize,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value<'a>>,
    objects: Vec<Object<'a>>,
}

impl<'a> Machine<'a> {
    /// Runs one opcode; the result of the pickle after the last one.
    fn run_opcode(&mut self) -> Result<Option<Value<'a>>, String> {
        let opcode = self.u8()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => self.protocol()?,
            0x95 => _ = self.take(8)?,
            b'(' => self.marks.push(self.stack.len()),
            b'N' | 0x88 | 0x89 => self.stack.push(Value::Plain),
            b'K' => self.unsigned(1)?,
            b'M' => self.unsigned(2)?,
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.stack.push(Value::Int(value.into()));
            }
            0x8a => self.long()?,
            b'G' => self.skip_plain(8)?,
            b'X' => self.text(4)?,
            0x8c => self.text(1)?,
            0x8d => self.text(8)?,
            b'C' => self.bytes_object(1)?,
            b'B' => self.bytes_object(4)?,
            0x8e => self.bytes_object(8)?,
            b']' | 0x8f => self.push_object(Object::Inert),
            b'}' => self.push_object(Object::Dict(Vec::new())),
            b')' => self.push_object(Object::Tuple(Vec::new())),
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.push_object(Object::Tuple(items));
            }
            b't' => {
                let items = self.pop_to_mark()?;
                self.push_object(Object::Tuple(items));
            }
            b'a' => {
                self.pop()?;
                self.extend_inert()?;
            }
            b'e' | 0x90 => {
                self.pop_to_mark()?;
                self.extend_inert()?;
            }
            b's' => {
                let items = self.pop_many(2)?;
                self.set_items(&items)?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set_items(&items)?;
            }
            b'q' => {
                let index = u32::from(self.u8()?);
                self.memoize(index)?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.array()?);
                self.memoize(index)?;
            }
            0x94 => self.memoize(self.memo.len() as u32)?,
            b'h' => {
                let index = u32::from(self.u8()?);
                self.recall(index)?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.array()?);
                self.recall(index)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(module, name)?;
            }
            0x93 => match self.pop_many(2)?[..] {
                [Value::Text(module), Value::Text(name)] => self.push_global(module, name)?,
                _ => return Err("a name that is not text".to_owned()),
            },
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            0x81 => self.new_object()?,
            b'b' => {
                self.pop()?;
                if !matches!(self.top()?, Some(Object::Dict(_) | Object::Inert)) {
                    return Err("a state is set on something that has none".to_owned());
                }
            }
            other => return Err(format!("opcode {other:#04x} is not allowed")),
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let taken = self.bytes[self.position..].get(..length).ok_or("ends inside an opcode")?;
        self.position += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were asked for"))
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    /// A little-endian unsigned integer of `width` bytes, at most 8.
    fn length(&mut self, width: usize) -> Result<u64, String> {
        let mut padded = [0; 8];
        padded[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(padded))
    }

    /// Bytes after their number.
    fn counted(&mut self, width: usize) -> Result<&'a [u8], String> {
        let length = self.length(width)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.position..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or("ends inside a name")?;
        let line = &self.take(length + 1)?[..length];
        str::from_utf8(line).map_err(|_| "a name that is not UTF-8".to_owned())
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.u8()? {
            2..=5 => Ok(()),
            other => Err(format!("protocol {other} is not supported (2 to 5 are)")),
        }
    }

    fn unsigned(&mut self, width: usize) -> Result<(), String> {
        let value = self.length(width)?;
        self.stack.push(i64::try_from(value).map_or(Value::Plain, Value::Int));
        Ok(())
    }

    /// An integer of any length, in two's complement.
    fn long(&mut self) -> Result<(), String> {
        let bytes = self.counted(1)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut extended = [if negative { 0xff } else { 0 }; 8];
        let value = match extended.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(extended))
            }
            None => Value::Plain,
        };
        self.stack.push(value);
        Ok(())
    }

    fn skip_plain(&mut self, length: usize) -> Result<(), String> {
        self.take(length)?;
        self.stack.push(Value::Plain);
        Ok(())
    }

    fn text(&mut self, width: usize) -> Result<(), String> {
        let text = str::from_utf8(self.counted(width)?).map_err(|_| "text that is not UTF-8")?;
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn bytes_object(&mut self, width: usize) -> Result<(), String> {
        self.counted(width)?;
        self.stack.push(Value::Plain);
        Ok(())
    }

    fn push_object(&mut self, object: Object<'a>) {
        self.stack.push(Value::Object(self.objects.len()));
        self.objects.push(object);
    }

    fn push_global(&mut self, module: &'a str, name: &'a str) -> Result<(), String> {
        let value = Global::of(module, name).ok_or_else(|| {
            format!(
                "refers to `{}.{}`, which is not allowed: only tensors and plain values are read, and nothing is executed. \
                 Write the weights alone: torch.save(model.state_dict(), FILE)",
                shown(module),
                shown(name)
            )
        })?;
        self.stack.push(value);
        Ok(())
    }

    /// Height of the stack below which nothing may be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Value<'a>>, String> {
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor());
        Ok(self.stack.split_off(start.ok_or("the stack is too short")?))
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        if self.stack.len() <= self.floor() {
            return Err("the stack is too short".to_owned());
        }
        self.stack.pop().ok_or_else(|| "the stack is too short".to_owned())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value<'a>>, String> {
        let start = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(start))
    }

    /// The object on top of the stack, which stays there.
    fn top(&mut self) -> Result<Option<&mut Object<'a>>, String> {
        match self.stack[self.floor()..].last() {
            Some(&Value::Object(index)) => Ok(self.objects.get_mut(index)),
            Some(_) => Ok(None),
            None => Err("the stack is too short".to_owned()),
        }
    }

    fn extend_inert(&mut self) -> Result<(), String> {
        match self.top()? {
            Some(Object::Inert) => Ok(()),
            _ => Err("items are added to something that is no list or set".to_owned()),
        }
    }

    fn set_items(&mut self, items: &[Value<'a>]) -> Result<(), String> {
        let (pairs, rest) = items.as_chunks::<2>();
        match self.top()? {
            Some(Object::Dict(entries)) if rest.is_empty() => {
                entries.extend(pairs.iter().map(|&[key, value]| (key, value)));
                Ok(())
            }
            Some(Object::Dict(_)) => Err("a key without a value".to_owned()),
            _ => Err("items are set on something that is no dict".to_owned()),
        }
    }

    fn memoize(&mut self, index: u32) -> Result<(), String> {
        let top = *self.stack[self.floor()..].last().ok_or("the stack is too short")?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let value = *self.memo.get(&index).ok_or_else(|| format!("there is no memo {index}"))?;
        self.stack.push(value);
        Ok(())
    }

    fn tuple(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::Object(index) => match self.objects.get(index) {
                Some(Object::Tuple(items)) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// `("storage", type, key, device, elements)`.
    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let storage = match self.tuple(id) {
            Some(
                &[
                    Value::Text("storage"),
                    Value::Global(Global::Storage(dtype)),
                    Value::Text(key),
                    Value::Text(_),
                    Value::Int(elements),
                ],
            ) => Storage { dtype, key, elements },
            _ => return Err("a persistent id that is no storage".to_owned()),
        };
        self.push_object(Object::Storage(storage));
        Ok(())
    }

    /// A call: of each allowed function what it returns for weights.
    fn reduce(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let callable = self.pop()?;
        let Value::Global(function) = callable else {
            return Err("calls something that is no function".to_owned());
        };
        let arguments = self.tuple(arguments).ok_or("arguments that are no tuple")?;
        let object = match (function, arguments) {
            (Global::RebuildTensor, &[Value::Object(storage), Value::Int(offset), shape, strides, ..]) => {
                let Some(&Object::Storage(storage)) = self.objects.get(storage) else {
                    return Err("a tensor without a storage".to_owned());
                };
                Object::Tensor(Tensor { storage, offset, shape, strides })
            }
            (Global::RebuildParameter, &[Value::Object(data), ..]) => match self.objects.get(data) {
                Some(&Object::Tensor(tensor)) => Object::Tensor(tensor),
                _ => return Err("a parameter without a tensor".to_owned()),
            },
            (Global::OrderedDict, []) => Object::Dict(Vec::new()),
            (Global::Size, &[extents]) => {
                let extents = self.tuple(extents).ok_or("a torch.Size of something that is no tuple")?;
                Object::Tuple(extents.to_vec())
            }
            (Global::Inert, _) => Object::Inert,
            (function, arguments) => {
                return Err(format!("{function:?} is called with {} arguments that do not fit it", arguments.len()));
            }
        };
        self.push_object(object);
        Ok(())
    }

    fn new_object(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let class = self.pop()?;
        match (class, self.tuple(arguments)) {
            (Value::Global(Global::Inert), Some(_)) => self.push_object(Object::Inert),
            (Value::Global(Global::OrderedDict), Some([])) => self.push_object(Object::Dict(Vec::new())),
            _ => return Err("makes an object of a class that is not allowed".to_owned()),
        }
        Ok(())
    }
}
