#include "ggml/weight_buffer.hpp"

#include "ggml/device.hpp"
#include "ggml/log.hpp"
#include "ggml/options.hpp"

#include <crumb/core/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace crumb_ggml {
namespace {

std::atomic<std::size_t> packed_tensors, packed_bytes, replaced_tensors, replaced_bytes;

/// Where the matrices of a tensor have to lie one after the other, without gaps.
bool is_packable(const ggml_tensor* t) noexcept {
    return t->view_src == nullptr && ggml_is_contiguous(t) && format_of(t->type) != nullptr;
}

void count(const stored_weights& w, std::size_t one) noexcept {
    if (w.replaced != nullptr) {
        replaced_tensors += one;
        replaced_bytes += one * w.replaced->bytes;
    } else if (w.is_packed()) {
        packed_tensors += one;
        packed_bytes += one * w.packed.size();
    }
}

void fail(const ggml_tensor* t, stored_weights& w, const crumb::status& why) noexcept {
    w.has_failed = true;
    log(GGML_LOG_LEVEL_WARN, "%s is multiplied as floats: %s", t->name, why.message());
}

/// Gives the whole pages of a place back to the system.
void release(void* begin, std::size_t size) noexcept {
    constexpr std::size_t page = 65536; // the largest of Arm's
    const std::size_t first = crumb::round_up(reinterpret_cast<std::uintptr_t>(begin), page);
    const std::size_t end = (reinterpret_cast<std::uintptr_t>(begin) + size) / page * page;
    if (first < end)
        (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

} // namespace

weight_totals count_weights() noexcept {
    return {packed_tensors.load(), packed_bytes.load(), replaced_tensors.load(), replaced_bytes.load()};
}

crumb::result<std::unique_ptr<weight_buffer>> weight_buffer::make(std::size_t size) {
    // Reading weights from ordinary pages spends a good part of the time on translating addresses.
    constexpr std::size_t huge_page = std::size_t{2} << 20;
    std::unique_ptr<weight_buffer> made(new weight_buffer);
    const std::size_t room = size + huge_page;
    void* p = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return crumb::status::error(crumb::errc::buffer_too_small, "no memory for %zu bytes of weights",
                                    size);
    made->mapping_ = p;
    made->mapped_ = room;
    made->base_ = reinterpret_cast<std::byte*>(
        crumb::round_up(reinterpret_cast<std::uintptr_t>(p), size >= huge_page ? huge_page : 4096));
    made->size_ = size;
    // Where the advice is refused, ordinary pages stay.
    (void)::madvise(made->base_, size, MADV_HUGEPAGE);
    return made;
}

weight_buffer::~weight_buffer() {
    forget_all();
    if (mapping_ != nullptr)
        ::munmap(mapping_, mapped_);
}

void weight_buffer::forget(std::unordered_map<const void*, stored_weights>::iterator at) {
    count(at->second, ~std::size_t{0});
    arena_.give_back(at->second.packed);
    tensors_.erase(at);
}

void weight_buffer::init(const ggml_tensor* t) {
    const std::lock_guard lock(guard_);
    if (t->view_src == nullptr)
        if (const auto at = tensors_.find(t->data); at != tensors_.end())
            forget(at);
}

stored_weights* weight_buffer::find(const ggml_tensor* t) {
    const auto at = tensors_.find(t->view_src != nullptr ? t->view_src->data : t->data);
    return at == tensors_.end() ? nullptr : &at->second;
}

stored_weights& weight_buffer::entry_of(const ggml_tensor* t) {
    stored_weights w;
    w.type = t->type;
    w.k = static_cast<std::size_t>(t->ne[0]);
    w.n = static_cast<std::size_t>(t->ne[1]);
    w.matrices = static_cast<std::size_t>(t->ne[2] * t->ne[3]);
    w.format = format_of(t->type);
    const auto at = tensors_.find(t->data);
    if (at != tensors_.end()) {
        const stored_weights& has = at->second;
        if (has.type == w.type && has.k == w.k && has.n == w.n && has.matrices == w.matrices)
            return at->second;
        forget(at);
    }
    return tensors_.emplace(t->data, std::move(w)).first->second;
}

crumb::status weight_buffer::pack(const ggml_tensor* t, stored_weights& w, const void* blocks) try {
    if (!loaders_)
        loaders_ = std::make_unique<lm::team>(0);
    w.packed = arena_.take(w.matrices * w.packed_stride());
    const auto pack_one = [&](std::size_t m) {
        const auto* from = static_cast<const std::byte*>(blocks) + m * w.matrix_bytes();
        return crumb::parallel_for(*loaders_, w.n, crumb::tile_channels, [&](crumb::range channels) {
            return w.format->pack(from, w.n, w.k, w.packed.subspan(m * w.packed_stride(), w.packed_bytes()),
                                  channels);
        });
    };
    crumb::status s;
    for (std::size_t m = 0; m < w.matrices && s; ++m)
        s = pack_one(m);
    if (s)
        s = plan(t, w);
    if (!s) {
        arena_.give_back(std::exchange(w.packed, {}));
        return s;
    }
    count(w, 1);
    release(t->data, w.matrices * w.matrix_bytes());
    return {};
} catch (const std::bad_alloc&) {
    if (!w.packed.empty())
        arena_.give_back(std::exchange(w.packed, {}));
    return crumb::status::error(crumb::errc::buffer_too_small, "no memory for %zu bytes",
                                w.matrices * w.packed_stride());
}

crumb::status weight_buffer::plan(const ggml_tensor* t, stored_weights& w) {
    w.plans.clear();
    const void* bytes = t->data;
    const auto keep = [&](const auto& planned) {
        if (planned)
            w.plans.emplace_back(*planned);
        return planned ? crumb::status() : planned.error();
    };
    const auto dense = [&]<class T>(const T* weights) {
        for (std::size_t m = 0; m < w.matrices; ++m)
            if (const auto s = keep(
                    crumb::dense_linear<T>::plan(crumb::matrix<const T>(weights + m * w.n * w.k, w.n, w.k)));
                !s)
                return s;
        return crumb::status();
    };
    if (w.has_failed)
        return dense(static_cast<const float*>(w.floats.as<float>()));
    if (w.type == GGML_TYPE_F32)
        return dense(static_cast<const float*>(bytes));
    if (w.type == GGML_TYPE_F16)
        return dense(static_cast<const crumb::half*>(bytes));
    if (w.type == GGML_TYPE_BF16)
        return dense(static_cast<const crumb::bf16*>(bytes));
    for (std::size_t m = 0; m < w.matrices; ++m)
        if (const auto s = keep(crumb::any_linear::open(w.packed_matrix(m))); !s)
            return s;
    return {};
}

crumb::status weight_buffer::expand(const ggml_tensor* t, stored_weights& w) {
    w.floats = crumb::buffer(w.matrices * w.n * w.k * sizeof(float), crumb::buffer::untouched);
    const auto to_float = ggml_get_type_traits(t->type)->to_float;
    for (std::size_t row = 0; row < w.matrices * w.n; ++row)
        to_float(static_cast<const std::byte*>(t->data) + row * w.row_bytes(),
                 w.floats.as<float>() + row * w.k, static_cast<std::int64_t>(w.k));
    return plan(t, w);
}

bool weight_buffer::replace(const ggml_tensor* t, stored_weights& w, const void* blocks) {
    w.replaced = find_replacement(t, blocks);
    if (w.replaced == nullptr)
        return false;
    w.plans.assign(1, w.replaced->plan);
    count(w, 1);
    release(t->data, ggml_nbytes(t));
    return true;
}

void weight_buffer::unpack(const stored_weights& w, std::size_t matrix, crumb::range rows, std::byte* to) {
    if (w.replaced != nullptr)
        return write_rows(*w.replaced, w.type, w.k, rows, to);
    const auto s = w.format->unpack(w.packed_matrix(matrix), rows, to);
    if (!s)
        GGML_ABORT("crumb: packed weights were changed in place: %s", s.message());
}

void weight_buffer::make_raw(const ggml_tensor* t) {
    const std::lock_guard lock(guard_);
    const ggml_tensor* whole = t->view_src != nullptr ? t->view_src : t;
    stored_weights* w = find(whole);
    if (w == nullptr)
        return;
    if (w->is_packed())
        for (std::size_t m = 0; m < w->matrices; ++m)
            unpack(*w, m, {0, w->n}, static_cast<std::byte*>(whole->data) + m * w->matrix_bytes());
    forget(tensors_.find(whole->data));
}

void weight_buffer::set(ggml_tensor* t, const void* data, std::size_t offset, std::size_t size) {
    const bool is_whole = offset == 0 && size == ggml_nbytes(t);
    if (has_replacements() && is_whole && t->view_src == nullptr && ggml_is_contiguous(t)) {
        const std::lock_guard lock(guard_);
        if (const auto at = tensors_.find(t->data); at != tensors_.end())
            forget(at);
        if (replace(t, entry_of(t), data))
            return;
    }
    if (!is_packable(t)) {
        make_raw(t);
        std::memcpy(static_cast<std::byte*>(t->data) + offset, data, size);
        if (the_options().verbose && t->view_src == nullptr && offset == 0)
            log(GGML_LOG_LEVEL_INFO, "%s: %s, as stored", t->name, ggml_type_name(t->type));
        return;
    }
    if (is_whole) {
        const std::lock_guard lock(guard_);
        if (const auto at = tensors_.find(t->data); at != tensors_.end())
            forget(at);
        stored_weights& w = entry_of(t);
        const auto s = pack(t, w, data);
        if (s) {
            if (the_options().verbose)
                log(GGML_LOG_LEVEL_INFO, "%s: %s, packed", t->name, w.format->name);
            return;
        }
        fail(t, w, s);
        std::memcpy(t->data, data, size);
        return;
    }
    make_raw(t);
    std::memcpy(static_cast<std::byte*>(t->data) + offset, data, size);
}

void weight_buffer::fill(ggml_tensor* t, std::uint8_t value, std::size_t offset, std::size_t size) {
    make_raw(t);
    std::memset(static_cast<std::byte*>(t->data) + offset, value, size);
}

void weight_buffer::get(const ggml_tensor* t, void* data, std::size_t offset, std::size_t size) {
    const std::lock_guard lock(guard_);
    stored_weights* w = find(t);
    if (w == nullptr || !w->is_packed()) {
        std::memcpy(data, static_cast<const std::byte*>(t->data) + offset, size);
        return;
    }
    std::size_t begin = offset + (t->view_src != nullptr ? t->view_offs : 0);
    const std::size_t end = begin + size, row_bytes = w->row_bytes();
    auto* to = static_cast<std::byte*>(data);
    while (begin < end) {
        // Whole rows of one matrix, of which the first and the last may be wanted in part.
        const std::size_t m = begin / w->matrix_bytes(), at = begin % w->matrix_bytes();
        const std::size_t until = std::min(end - m * w->matrix_bytes(), w->matrix_bytes());
        const crumb::range rows{at / row_bytes, (until + row_bytes - 1) / row_bytes};
        const crumb::buffer blocks(rows.size() * row_bytes, crumb::buffer::untouched);
        unpack(*w, m, rows, blocks.data());
        std::memcpy(to, blocks.data() + (at - rows.begin * row_bytes), until - at);
        to += until - at;
        begin += until - at;
    }
}

void weight_buffer::forget_all() {
    while (!tensors_.empty())
        forget(tensors_.begin());
    loaders_.reset();
}

void weight_buffer::clear(std::uint8_t value) {
    const std::lock_guard lock(guard_);
    forget_all();
    std::memset(base_, value, size_);
}

crumb::result<const stored_weights*> weight_buffer::plans_of(const ggml_tensor* t) {
    const std::lock_guard lock(guard_);
    loaders_.reset();
    stored_weights& w = entry_of(t);
    if (w.plans.empty() && has_replacements() && replace(t, w, t->data))
        return &w;
    if (w.plans.empty() && w.format != nullptr && !w.has_failed)
        if (const auto s = pack(t, w, t->data); !s)
            fail(t, w, s);
    if (w.plans.empty())
        if (const auto s = w.has_failed ? expand(t, w) : plan(t, w); !s)
            return s;
    return &w;
}

// ---- ggml's interface

namespace {

const ggml_backend_buffer_i buffer_functions = {
    .free_buffer = [](ggml_backend_buffer_t b) { delete &weight_buffer::of(b); },
    .get_base = [](ggml_backend_buffer_t b) -> void* { return weight_buffer::of(b).base(); },
    .init_tensor =
        [](ggml_backend_buffer_t b, ggml_tensor* t) {
            weight_buffer::of(b).init(t);
            return GGML_STATUS_SUCCESS;
        },
    .memset_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, std::uint8_t value, std::size_t offset,
                        std::size_t size) { weight_buffer::of(b).fill(t, value, offset, size); },
    .set_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, const void* data, std::size_t offset,
                     std::size_t size) { weight_buffer::of(b).set(t, data, offset, size); },
    .get_tensor = [](ggml_backend_buffer_t b, const ggml_tensor* t, void* data, std::size_t offset,
                     std::size_t size) { weight_buffer::of(b).get(t, data, offset, size); },
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor =
        [](ggml_backend_buffer_t b, const ggml_tensor* from, ggml_tensor* to) {
            if (!ggml_backend_buffer_is_host(buffer_of(from)))
                return false;
            weight_buffer::of(b).set(to, from->data, 0, ggml_nbytes(to));
            return true;
        },
    .clear = [](ggml_backend_buffer_t b, std::uint8_t value) { weight_buffer::of(b).clear(value); },
    .reset = nullptr,
};

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
    auto made = weight_buffer::make(size);
    if (!made) {
        log(GGML_LOG_LEVEL_ERROR, "%s", made.message());
        return nullptr;
    }
    return ggml_backend_buffer_init(type, buffer_functions, made->release(), size);
}

} // namespace

ggml_backend_buffer_type_t weight_buffer_type() noexcept {
    static ggml_backend_buffer_type type = {
        .iface = {
            .get_name = [](ggml_backend_buffer_type_t) { return "CRUMB"; },
            .alloc_buffer = alloc_buffer,
            .get_alignment = [](ggml_backend_buffer_type_t) { return crumb::alignment; },
            .get_max_size = nullptr,
            .get_alloc_size = nullptr,
            .is_host = nullptr,
        },
        .device = registered_device(),
        .context = nullptr,
    };
    return &type;
}

} // namespace crumb_ggml
