//! Views of `[batch, channels, time]` tensors with contiguous time.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;

/// A borrowed `[batch, channels, time]` tensor whose time axis is contiguous.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    data: &'a [f32],
    batch_stride: usize,
    channel_stride: usize,
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) time: usize,
}

impl<'a> Rows<'a> {
    /// A dense tensor.
    #[cfg(test)]
    pub(super) fn dense(data: &'a [f32], batch: usize, channels: usize, time: usize) -> Self {
        assert_eq!(data.len(), batch * channels * time);
        let (batch_stride, channel_stride) = (channels * time, time);
        Self {
            data,
            batch_stride,
            channel_stride,
            batch,
            channels,
            time,
        }
    }

    /// A view of an f32 tensor that [`contiguous_time`] returned.
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        let [batch, channels, time] = tensor.shape().dims::<3>();
        let layout = tensor.layout();
        let stride = |axis: usize| layout.strides()[axis].unsigned_abs();
        Self {
            data: &tensor.storage::<f32>()[layout.start_offset()..],
            batch_stride: stride(0),
            channel_stride: stride(1),
            batch,
            channels,
            time,
        }
    }

    /// One channel of one batch entry.
    #[inline(always)]
    pub(super) fn row(&self, batch: usize, channel: usize) -> &'a [f32] {
        &self.data[batch * self.batch_stride + channel * self.channel_stride..][..self.time]
    }
}

/// The tensor itself if its time axis is contiguous and no axis runs backwards, else a copy.
pub(super) fn contiguous_time(tensor: FlexTensor) -> FlexTensor {
    let strides = tensor.layout().strides();
    let time = tensor.shape()[2];
    if strides.iter().all(|&s| s >= 0) && (strides[2] == 1 || time <= 1) {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// The values of a tensor, dense; copied to `kept` only if it is not.
pub(super) fn dense<'a>(tensor: &'a FlexTensor, kept: &'a mut Option<FlexTensor>) -> &'a [f32] {
    if tensor.as_slice::<f32>().is_some() {
        return tensor.as_slice().expect("just seen");
    }
    let copy = kept.insert(tensor.to_contiguous());
    copy.as_slice().expect("contiguous f32 tensor")
}

/// A `[batch, channels, time]` result that threads fill in disjoint parts.
pub(super) struct SharedOutput {
    values: Vec<f32>,
    len: usize,
    start: *mut f32,
    channels: usize,
    time: usize,
}

// SAFETY: the pointer is only written through `at`, whose callers write disjoint parts.
unsafe impl Sync for SharedOutput {}

impl SharedOutput {
    pub(super) fn new(batch: usize, channels: usize, time: usize) -> Self {
        let len = batch * channels * time;
        let mut values = Vec::with_capacity(len);
        let start = values.as_mut_ptr();
        Self {
            values,
            len,
            start,
            channels,
            time,
        }
    }

    /// Where position `t` of a channel lies.
    ///
    /// # Safety
    ///
    /// The indices are below the sizes given to `new`.
    #[inline(always)]
    pub(super) unsafe fn at(&self, batch: usize, channel: usize, t: usize) -> *mut f32 {
        // SAFETY: within the allocation by the caller's contract.
        unsafe {
            self.start
                .add((batch * self.channels + channel) * self.time + t)
        }
    }

    /// The filled values.
    ///
    /// # Safety
    ///
    /// Every value has been written.
    pub(super) unsafe fn take(&mut self) -> Vec<f32> {
        let mut values = std::mem::take(&mut self.values);
        // SAFETY: the capacity was reserved by `new`, and the caller wrote every value.
        unsafe { values.set_len(self.len) };
        values
    }
}
