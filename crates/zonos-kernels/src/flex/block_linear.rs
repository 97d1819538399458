//! Linear and expert layers whose weights are quantised blocks.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use rayon::prelude::*;
use zonos_gguf::GgmlType;

use super::blocks::{CHUNK, Input, MOST, Matrix, products};
use super::linear::{PARALLEL, Shared, by_panels};
use super::several_rows::MANY;
use super::simd::{Isa, dispatch_on};
use super::step::SiluTimes;
use super::weights::{contiguous, elements, f32_tensor};
use crate::Activations;

/// Rows from which decoding all weights and GEMM are faster than kernels that decode for a few rows at a
/// time.
const DECODED_ROWS: usize = 64;

/// Weight matrices for some rows of the input: one, or a gate and what it lets through.
struct Task<'a> {
    matrices: [Matrix<'a>; 2],
    /// Whether there is a gate: the first matrix.
    gated: bool,
    rows: Vec<usize>,
}

/// `x [n, inner]` through the tasks' matrices, each with `out` rows: `[n, out]`. Every row is in one task.
fn run(
    isa: Isa,
    tasks: &[Task<'_>],
    x: &[f32],
    n: usize,
    out: usize,
    activations: Activations,
) -> Vec<f32> {
    let mut y = vec![0.0; n * out];
    let Some(first) = tasks.first() else {
        return y;
    };
    let inner = first.matrices[0].inner();
    let input = Input::new(isa, x, inner, activations);

    // Many rows are worth decoding for, unless codes are multiplied with codes.
    let enough = match (input.plain(), activations) {
        (Some(_), _) => MANY,
        (None, Activations::Exact) => DECODED_ROWS,
        (None, Activations::EightBit) => usize::MAX,
    };
    let many = |task: &&Task<'_>| task.rows.len() >= enough;
    for task in tasks.iter().filter(many) {
        let part = decoded(isa, task, input.plain().unwrap_or(x), inner, out);
        for (&row, part) in task.rows.iter().zip(part.chunks_exact(out)) {
            y[row * out..(row + 1) * out].copy_from_slice(part);
        }
    }

    let few: Vec<&Task<'_>> = tasks.iter().filter(|task| !many(task)).collect();
    let target = Shared::new(&mut y);
    let items: Vec<(usize, Range<usize>)> = (0..few.len())
        .flat_map(|t| {
            (0..out)
                .step_by(CHUNK)
                .map(move |at| (t, at..out.min(at + CHUNK)))
        })
        .collect();
    let run = |(t, chunk): &(usize, Range<usize>)| {
        let task = few[*t];
        // One row, as a decode step has it, needs no room for many.
        match task.rows.len() {
            1 => write_chunk::<1>(isa, task, chunk, &input, out, &target),
            _ => write_chunk::<MOST>(isa, task, chunk, &input, out, &target),
        }
    };
    if few.len() * inner * out < PARALLEL {
        items.iter().for_each(run);
    } else {
        items.par_iter().for_each(run);
    }
    y
}

/// A chunk of a task's outputs, `N` rows of the input at a time.
fn write_chunk<const N: usize>(
    isa: Isa,
    task: &Task<'_>,
    chunk: &Range<usize>,
    input: &Input,
    out: usize,
    target: &Shared,
) {
    let ([first, second], len) = (task.matrices, chunk.len());
    for rows in task.rows.chunks(N) {
        let products_of = |matrix: Matrix<'_>| {
            let mut to = [[0.0; CHUNK]; N];
            products(
                isa,
                matrix,
                chunk.clone(),
                input,
                rows,
                &mut to[..rows.len()],
            );
            to
        };
        let mut y = products_of(first);
        if task.gated {
            let up = products_of(second);
            for (gate, up) in y.iter_mut().zip(&up).take(rows.len()) {
                let mut gated = [0.0; CHUNK];
                let (gate, up, y) = (&mut gate[..len], &up[..len], &mut gated[..len]);
                dispatch_on(isa, SiluTimes { gate, up, y });
                gate.copy_from_slice(&gated[..len]);
            }
        }
        for (&row, products) in rows.iter().zip(&y) {
            // SAFETY: a row belongs to one task, and an output of it to one chunk.
            unsafe { target.write(row * out + chunk.start, &products[..len]) };
        }
    }
}

/// A task with many rows, in their order, through decoded weights and GEMM.
fn decoded(isa: Isa, task: &Task<'_>, x: &[f32], inner: usize, out: usize) -> Vec<f32> {
    let gathered: Vec<f32> = task
        .rows
        .iter()
        .flat_map(|&r| &x[r * inner..(r + 1) * inner])
        .copied()
        .collect();
    let through = |matrix: Matrix<'_>| {
        let mut y = vec![0.0; task.rows.len() * out];
        by_panels(&gathered, &mut y, inner, out, |rows, panel| {
            matrix.decode(rows, panel);
        });
        y
    };
    let first = through(task.matrices[0]);
    if !task.gated {
        return first;
    }
    let up = through(task.matrices[1]);
    let mut y = vec![0.0; first.len()];
    dispatch_on(
        isa,
        SiluTimes {
            gate: &first,
            up: &up,
            y: &mut y,
        },
    );
    y
}

/// See [`SpeechBackend::block_linear`](crate::SpeechBackend::block_linear).
pub(super) fn block_linear(
    isa: Isa,
    x: FlexTensor,
    blocks: FlexTensor,
    ggml_type: GgmlType,
    activations: Activations,
) -> FlexTensor {
    let (x, blocks) = (contiguous(x), contiguous(blocks));
    let [out, row] = blocks.shape().dims::<2>();
    let [n, inner] = x.shape().dims::<2>();
    assert_eq!(
        row / ggml_type.block_bytes() * ggml_type.block_values(),
        inner,
        "block_linear: input width and weight differ"
    );
    if n * out * inner == 0 {
        return f32_tensor(vec![0.0; n * out], [n, out]);
    }
    let matrix = Matrix::new(ggml_type, bytes(&blocks), row);
    let task = Task {
        matrices: [matrix; 2],
        gated: false,
        rows: (0..n).collect(),
    };
    let y = run(isa, &[task], elements(&x), n, out, activations);
    f32_tensor(y, [n, out])
}

/// See [`SpeechBackend::block_expert_linear`](crate::SpeechBackend::block_expert_linear).
pub(super) fn block_expert_linear(
    isa: Isa,
    x: FlexTensor,
    blocks: FlexTensor,
    expert: FlexTensor,
    ggml_type: GgmlType,
    activations: Activations,
) -> FlexTensor {
    by_expert(
        isa,
        x,
        [&blocks; 2],
        expert,
        [ggml_type; 2],
        false,
        activations,
    )
}

/// See [`SpeechBackend::block_expert_gate_up`](crate::SpeechBackend::block_expert_gate_up).
pub(super) fn block_expert_gate_up(
    isa: Isa,
    x: FlexTensor,
    gate: FlexTensor,
    up: FlexTensor,
    expert: FlexTensor,
    ggml_types: [GgmlType; 2],
    activations: Activations,
) -> FlexTensor {
    by_expert(isa, x, [&gate, &up], expert, ggml_types, true, activations)
}

fn by_expert(
    isa: Isa,
    x: FlexTensor,
    stacks: [&FlexTensor; 2],
    expert: FlexTensor,
    ggml_types: [GgmlType; 2],
    gated: bool,
    activations: Activations,
) -> FlexTensor {
    let x = contiguous(x);
    let stacks = stacks.map(|stack| contiguous(stack.clone()));
    let [n, inner] = x.shape().dims::<2>();
    let [experts, out, _] = stacks[0].shape().dims::<3>();
    let mut rows = [0; 2];
    for s in 0..2 {
        let [e, o, row] = stacks[s].shape().dims::<3>();
        let t = ggml_types[s];
        let width = row / t.block_bytes() * t.block_values();
        assert!(
            (e, o, width) == (experts, out, inner),
            "experts in blocks: a stack of {e} matrices {o} x {width} where {experts} of {out} x {inner} belong"
        );
        rows[s] = row;
    }
    if n * out * inner == 0 {
        return f32_tensor(vec![0.0; n * out], [n, out]);
    }
    let chosen = expert.into_data().convert::<i64>();
    let chosen = chosen.as_slice::<i64>().expect("converted to i64");
    let matrix = |s: usize, e: usize| {
        let size = out * rows[s];
        Matrix::new(
            ggml_types[s],
            &bytes(&stacks[s])[e * size..][..size],
            rows[s],
        )
    };
    let groups = crate::portable::group_by_expert(chosen, experts).into_iter();
    let tasks: Vec<Task<'_>> = groups
        .map(|(e, rows)| Task {
            matrices: [matrix(0, e), matrix(1, e)],
            gated,
            rows: rows.into_iter().map(|r| r as usize).collect(),
        })
        .collect();
    let y = run(isa, &tasks, elements(&x), n, out, activations);
    f32_tensor(y, [n, out])
}

/// The bytes of a contiguous tensor.
fn bytes(tensor: &FlexTensor) -> &[u8] {
    let start = tensor.layout().start_offset();
    &tensor.storage::<u8>()[start..start + tensor.layout().num_elements()]
}
