#include "eval/entropy.hpp"

#include "gguf/output_file.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/dispatch/cache.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <array>

namespace lm {

using crumb::buffer;

using crumb::half;
using crumb::status;

namespace {

constexpr std::size_t tokens = crumb::kv_mean_tokens; ///< of a block of samples

/// How often each of at most 256 codes occurs.
class histogram {
  public:
    void add(std::size_t code) {
        ++counts_[code];
        ++all_;
    }
    double entropy() const {
        double bits = 0;
        for (const std::size_t n : counts_) {
            const double p = static_cast<double>(n) / static_cast<double>(all_);
            bits -= n == 0 ? 0 : p * std::log2(p);
        }
        return bits;
    }

  private:
    std::array<std::size_t, 256> counts_ = {};
    std::size_t all_ = 0;
};

/// Uniform codes of 4 bits of a channel.
std::vector<std::uint8_t> uniform_codes(const std::vector<float>& rows, std::size_t size,
                                        std::size_t channel) {
    float low = rows[channel], high = low;
    for (std::size_t i = channel; i < rows.size(); i += size) {
        low = std::min(low, rows[i]);
        high = std::max(high, rows[i]);
    }
    std::vector<std::uint8_t> codes;
    for (std::size_t i = channel; i < rows.size(); i += size)
        codes.push_back(high > low
                            ? static_cast<std::uint8_t>(std::lrint(15 * (rows[i] - low) / (high - low)))
                            : std::uint8_t{0});
    return codes;
}

/// Entropies of two channels and of both together.
std::array<double, 3> entropies(const std::vector<float>& rows, std::size_t size, std::size_t channel) {
    const auto a = uniform_codes(rows, size, channel), b = uniform_codes(rows, size, channel + 1);
    histogram first, second, joint;
    for (std::size_t i = 0; i < a.size(); ++i) {
        first.add(a[i]);
        second.add(b[i]);
        joint.add(16u * a[i] + b[i]);
    }
    return {first.entropy(), second.entropy(), joint.entropy()};
}

/// Keys or values of a head: rows as they are, what codes stand for, and the codes' entropies.
class head_samples {
  public:
    head_samples(const crumb::kv_samples& samples, const crumb::pq_codebooks& books, std::size_t layer,
                 std::size_t head, bool keys, const crumb::dispatch::kv_cache_functions& functions)
        : size_(books.head_size()), codec_(books.codec()), layout_(codec_, size_, keys),
          tables_(books.tables(layer, head, keys)), page_(layout_.bytes()), rows_of_(layout_.rows()) {
        std::vector<half> mean(size_);
        std::vector<float> rest(tokens * size_), scale(tokens);
        const buffer both(2 * tokens * size_ * sizeof(half));
        const buffer scratch(crumb::kernel::kv_encode_floats(size_) * sizeof(float));
        for (std::size_t n = 0; n < samples.blocks(layer); ++n) {
            const auto block = samples.block(layer, head, keys, n);
            plain_.insert(plain_.end(), block.begin(), block.end());
            crumb::reference::kv_part::take_out(true, crumb::matrix(block.data(), tokens, size_), mean.data(),
                                                crumb::matrix(rest.data(), tokens, size_), scale.data());
            for (std::size_t i = 0; i < rest.size(); ++i)
                residual_.push_back(scale[i / size_] > 0 ? rest[i] / scale[i / size_] : 0.0f);
            // Two blocks of samples are one block of codes.
            for (std::size_t i = 0; i < block.size(); ++i)
                both.as<half>()[n % 2 * tokens * size_ + i] = crumb::kv_half(block[i]);
            if (n % 2 == 1) {
                functions.encode({.layout = layout_,
                                  .tables = tables_,
                                  .part = page_.bytes().data(),
                                  .from = both.as<half>(),
                                  .scratch = scratch.as<float>()});
                count();
            }
        }
    }

    const std::vector<float>& plain() const noexcept { return plain_; }
    const std::vector<float>& residual() const noexcept { return residual_; }
    /// Entropy of the codes of two channels.
    double codes(std::size_t channel) const {
        if (codec_.dims == 1)
            return rows_of_[channel].entropy() + rows_of_[channel + 1].entropy();
        return 2 * rows_of_[channel / codec_.dims].entropy() / codec_.dims;
    }

  private:
    void count() {
        const std::uint8_t* codes = page_.as<std::uint8_t>() + layout_.codes_offset();
        for (std::size_t j = 0; j < layout_.rows(); ++j)
            for (std::size_t t = 0; t < crumb::kv_block_tokens; ++t)
                rows_of_[j].add(crumb::kv_code(codes + j * layout_.row_bytes(), codec_.bits, t));
    }

    std::size_t size_;
    crumb::kv_codec codec_;
    crumb::kv_part_layout layout_;
    crumb::pq_tables tables_;
    buffer page_;
    std::vector<histogram> rows_of_; ///< of codes
    std::vector<float> plain_, residual_;
};

} // namespace

status write_entropies(const std::string& path, const crumb::kv_samples& samples,
                       const crumb::kv_codebooks& books) {
    const auto isa = crumb::choose_isa();
    if (!isa)
        return isa.error();
    const auto tables = books.view();
    if (!tables)
        return tables.error();
    auto out = output_file::create(path);
    if (!out)
        return out.error();
    out->write("layer,head,kind,channel,first,second,joint,residual_first,residual_second,residual_joint,"
               "codes,width\n");
    const crumb::kv_shape& shape = samples.shape();
    for (std::size_t layer = 0; layer < shape.layers; ++layer)
        for (std::size_t head = 0; head < shape.kv_heads; ++head)
            for (const bool keys : {true, false}) {
                const head_samples of(
                    samples, *tables, layer, head, keys,
                    crumb::dispatch::functions_at<crumb::dispatch::kv_cache_functions>(*isa));
                for (std::size_t c = 0; c + 1 < shape.head_size; c += 2) {
                    const auto plain = entropies(of.plain(), shape.head_size, c);
                    const auto residual = entropies(of.residual(), shape.head_size, c);
                    out->print("%zu,%zu,%s,%zu,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3g\n", layer, head,
                               keys ? "keys" : "values", c, plain[0], plain[1], plain[2], residual[0],
                               residual[1], residual[2], of.codes(c),
                               2.0 * books.codec.bits / books.codec.dims);
                }
            }
    return out->commit();
}

} // namespace lm
