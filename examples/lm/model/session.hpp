// Running a model over a sequence of tokens.
#pragma once

#include "machine/team.hpp"
#include "model/cache_encoder.hpp"
#include "model/kv.hpp"
#include "model/model.hpp"
#include "model/profile.hpp"

#include <crumb/op/cache/kv_cache.hpp>

#include <functional>
#include <memory>

namespace lm {

/// What folded networks have done, all layers together.
struct ffn_counts {
    std::size_t tokens = 0, neurons = 0, fixed = 0;
    std::optional<std::size_t> missed; ///< if they are counted
    double bytes = 0;                  ///< read by these tokens, if each of them had come alone
};

/// How often attention to coded tokens took a second plane.
struct kv_plane_counts {
    std::size_t heads = 0;          ///< query heads of all steps and layers that had coded tokens
    double scores = 0, weights = 0; ///< sums of the heads' shares of parts of 256 tokens, `crumb::kv_error`
};

/// What a pass over a model consists of, layer by layer: see `session::run`. `x_input` is the norm in front
/// of matrices, `x` what `attn_output` or `ffn_down` reads, `add_x` adds their products to the residual
/// stream, `output` gives logits.
enum class pass_part {
    attention_input,
    attention,
    add_attention,
    network_input,
    network,
    add_network,
    output_input,
    output
};

/// One sequence: its key-value cache and the buffers of a forward pass. The model must outlive it.
class session {
  public:
    /// For up to `context` tokens (at most the model's), fed in batches of at most `batch`. Memory for them
    /// is taken as they come. `codebooks`: of kv's codec, if that needs some; must outlive the session.
    static crumb::result<session> make(const model& m, team threads, const kv_type& kv, std::size_t context,
                                       std::size_t batch, const crumb::pq_codebooks& codebooks = {});
    session(session&&) noexcept;
    session& operator=(session&&) noexcept;
    ~session();

    /// An error if this machine lacks the memory for so many tokens.
    crumb::status fits(std::size_t tokens) const;

    /// Forgets the sequence.
    void reset() noexcept;
    /// Forgets all but the first `length` tokens, if there are more; all of them, if a layer's window has
    /// lost what the next token sees (`length` tells).
    void rewind(std::size_t length) noexcept;
    /// Tokens fed so far.
    std::size_t length() const noexcept;
    std::size_t context() const noexcept;
    const team& threads() const noexcept;
    const model& of() const noexcept;
    /// The cache of a layer, and which of the cache's layers it is: layers with the same window share one.
    struct cached_layer {
        const crumb::kv_cache& cache;
        std::size_t layer;
    };
    cached_layer cached(std::size_t layer) const noexcept;

    /// Bits per weight of nested matrices in the batches from now on, one of the model's precisions; the
    /// highest one at first.
    void precision(int bits) noexcept;

    /// Tokens of the shortest ranges that threads share where they share a head, a multiple of 256; before
    /// the first token. Logits depend on it in their last bits.
    void shortest_range(std::size_t tokens) noexcept;

    /// Appends tokens and returns the logits behind the last `wanted` of them: wanted x vocabulary finite
    /// floats, valid until the next call. Refuses tokens that do not fit into the context or are none of the
    /// vocabulary. A number that is not finite ends the pass: the error names the tensor, the layer and the
    /// token where it appears first, the same for every number of threads, and the batch that it is in is not
    /// appended.
    crumb::result<std::span<const float>> feed(std::span<const std::int32_t> tokens, std::size_t wanted);

    /// Writes the residual stream of tokens as it starts, one row each.
    crumb::status embed(std::span<const std::int32_t> tokens, const crumb::matrix_view<float>& to);
    /// Runs one part of one layer (the output has none) for a whole sequence of at most a batch, whose
    /// rows begin at position 0; the session forgets its own. `from` and `to` are rows of the residual
    /// stream, or of what `attn_output` or `ffn_down` reads. `from` of parts that multiply only is what they
    /// multiply. The same numbers as in `feed`; refuses folded networks.
    crumb::status run(pass_part part, std::size_t layer, const crumb::matrix_view<const float>& from,
                      const crumb::matrix_view<float>& to);

    /// Bytes that the cache takes now, of all layers.
    double kv_bytes() const noexcept;
    /// Bytes that the cache holds per token that no window has left behind: codes, scales and means; sinks,
    /// window and codebooks not counted.
    double kv_bytes_per_token() const noexcept;
    /// Share of the blocks of coded values that were left unread since `make`, all layers and heads; 0
    /// without `kv_type::skip`.
    double kv_left_unread() const noexcept;
    /// Counts planes in every step of one token from now on, from 0 on, where no range of tokens is shared.
    void count_planes() noexcept;
    kv_plane_counts planes() const noexcept;
    /// What the folded networks of all layers have come to in every batch from now on, from 0 on. Counting
    /// misses computes all neurons.
    void count_ffn(bool missed) noexcept;
    ffn_counts ffn() const noexcept;

    /// Calls f(matrix, input, part, parts) with what a matrix reads, for the first of those that read the
    /// same, in every batch from now on: in each of `parts` threads, which may share the work. An empty
    /// function ends that.
    void observe(std::function<void(const matrix&, const crumb::matrix_view<const float>&, std::size_t part,
                                    std::size_t parts)>
                     f);

    /// Queries, keys and values of a layer, before keys and values are written to the cache: queries and keys
    /// turned by their positions, heads side by side.
    struct attention_inputs {
        std::size_t layer;
        crumb::matrix_view<const float> queries, keys, values;
    };
    /// Calls f with those of every layer in every batch from now on. An empty function ends that. One thread
    /// only.
    void observe_cache(std::function<void(const attention_inputs&)> f);

    /// Calls f for every block of tokens that became codes beside decoding, from now on.
    void trace_encoding(std::function<void(const encoded_block&)> f);

    /// Begins to measure (or stops), with all times 0.
    void profile(bool on) noexcept;
    /// Seconds per kind of work since `profile`, the mean of all threads.
    section_times times() const noexcept;

  private:
    struct state;
    explicit session(std::unique_ptr<state> s);
    std::unique_ptr<state> state_;
};

} // namespace lm
