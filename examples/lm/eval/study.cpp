#include "eval/study.hpp"

#include "eval/evaluate.hpp"
#include "eval/rouge.hpp"
#include "model/input_text.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

double mean_of(std::span<const double> x) {
    return x.empty() ? 0.0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

template <class F>
status study::for_each(const std::string& stage, F&& f) {
    const progress_function progress = stage.empty() ? progress_function() : one_stage(progress_, stage);
    std::atomic<std::size_t> next = 0;
    std::mutex guard;
    std::size_t done = 0;
    std::vector<status> errors(prompts_.size());
    std::exception_ptr thrown;
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < sessions_.size(); ++t)
        threads.emplace_back([&, t] {
            try {
                for (std::size_t i; (i = next++) < prompts_.size();) {
                    errors[i] = f(t, i);
                    const std::lock_guard lock(guard);
                    ++done;
                    if (progress)
                        progress(done, prompts_.size());
                }
            } catch (...) {
                const std::lock_guard lock(guard);
                thrown = std::current_exception();
            }
        });
    threads.clear();
    if (thrown)
        std::rethrow_exception(thrown);
    for (const status& s : errors)
        if (!s)
            return s;
    return {};
}

/// Words are runs of letters and digits, in lower case, each a number of its own.
std::vector<std::int32_t> study::words(std::span<const std::int32_t> tokens) const {
    std::vector<std::int32_t> out;
    std::uint32_t hash = 0;
    const auto end = [&] {
        if (hash != 0)
            out.push_back(static_cast<std::int32_t>(hash));
        hash = 0;
    };
    for (const std::int32_t token : tokens)
        for (const char c : m_.vocabulary().decode(token)) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte < 128 && std::isalnum(byte) == 0)
                end();
            else
                hash = ((hash == 0 ? 2166136261u : hash) ^ static_cast<unsigned>(std::tolower(byte))) *
                       16777619u;
        }
    end();
    return out;
}

result<study> study::make(const model& m, const model* full, const kv_type& kv,
                          const crumb::pq_codebooks& codebooks, const std::string& text,
                          const study_options& o, std::size_t threads, const stage_function& progress) {
    if (o.prompts == 0 || o.prompt == 0 || o.tokens < 2 || o.prompt + o.tokens > m.shape().context)
        return status::error(errc::invalid_argument,
                             "%zu prompts of %zu tokens and %zu more: the model's context has %zu", o.prompts,
                             o.prompt, o.tokens, m.shape().context);
    const std::size_t each = o.prompt + o.tokens;
    auto writer = session::make(m, team(threads), kv_type::f16, each, o.prompt);
    if (!writer)
        return writer.error();
    // Evenly spaced prompts need the whole text; one alone is its beginning.
    const bool is_short = text == "self" || o.prompts == 1;
    auto tokens =
        calibration_text(text, m, *writer, each,
                         is_short ? o.prompts : std::numeric_limits<std::uint32_t>::max(), 1, progress);
    if (!tokens)
        return tokens.error();
    study s(m, o, progress);
    s.text_ = std::make_shared<const std::vector<std::int32_t>>(std::move(*tokens));
    if (s.text_->size() / each < o.prompts)
        return status::error(errc::invalid_argument, "%s has %zu tokens, %zu prompts take %zu", text.c_str(),
                             s.text_->size(), o.prompts, o.prompts * each);
    for (std::size_t i = 0; i < o.prompts; ++i) {
        const std::size_t at = (s.text_->size() - each) / std::max<std::size_t>(o.prompts - 1, 1) * i;
        const std::span<const std::int32_t> all = std::span(*s.text_).subspan(at, each);
        s.prompts_.push_back({all.first(o.prompt), all.subspan(o.prompt), {}, {}});
        s.prompts_.back().words = s.words(s.prompts_.back().continuation);
    }
    auto sessions = s.sessions_of(m, kv, codebooks, team(threads).size());
    if (!sessions)
        return sessions.error();
    s.sessions_ = std::move(*sessions);
    if (const status done = s.read_exactly(full != nullptr ? *full : m); !done)
        return done;
    return s;
}

result<std::vector<session>> study::sessions_of(const model& m, const kv_type& kv,
                                                const crumb::pq_codebooks& codebooks,
                                                std::size_t count) const {
    std::vector<session> out;
    while (out.size() < count) {
        auto s = session::make(m, team(1), kv, options_.prompt + options_.tokens, options_.prompt, codebooks);
        if (!s)
            return s.error();
        out.push_back(std::move(*s));
    }
    return out;
}

result<study> study::with(const model& other) const {
    study s(other, options_, progress_);
    s.text_ = text_;
    s.prompts_ = prompts_;
    s.full_rouge_ = full_rouge_;
    auto sessions = sessions_of(other, kv_type::f16, {}, sessions_.size());
    if (!sessions)
        return sessions.error();
    s.sessions_ = std::move(*sessions);
    return s;
}

status study::read_exactly(const model& full) {
    auto exact = sessions_of(full, kv_type::f16, {}, sessions_.size());
    if (!exact)
        return exact.error();
    full_rouge_.resize(prompts_.size());
    return for_each("full precision", [&](std::size_t t, std::size_t i) -> status {
        prompt& p = prompts_[i];
        std::vector<std::int32_t> written;
        session& s = (*exact)[t];
        s.reset();
        auto logits = s.feed(p.tokens, 1);
        while (logits) {
            written.push_back(likeliest(*logits));
            if (written.size() == options_.tokens)
                break;
            logits = s.feed({&written.back(), 1}, 1);
        }
        if (!logits)
            return logits.error();
        full_rouge_[i] = rouge_l(words(written), p.words)->f;
        const auto begin = std::span(p.tokens).first(p.tokens.size() - 1);
        s.rewind(begin.size());
        // Windows do not keep what they have left behind.
        if (s.length() != begin.size())
            if (const auto read = s.feed(begin, 0); !read)
                return read.error();
        std::vector<std::int32_t> rest = {p.tokens.back()};
        rest.insert(rest.end(), p.continuation.begin(), p.continuation.end() - 1);
        const auto all = s.feed(rest, rest.size());
        if (!all)
            return all.error();
        p.exact.assign(all->begin(), all->end());
        return {};
    });
}

result<study_result> study::run(const schedule_source& source, measure what, const std::string& stage) {
    study_result out;
    out.name = source.name;
    const std::size_t n = prompts_.size(), length = options_.tokens;
    const bool by_rouge = what != measure::divergence, by_kl = what != measure::rouge;
    std::vector<double> bits(n);
    std::vector<std::vector<double>> at(n);
    if (by_rouge)
        out.rouge.resize(n);
    const status done = for_each(stage, [&](std::size_t t, std::size_t i) -> status {
        const prompt& p = prompts_[i];
        decoder d(sessions_[t], source);
        if (by_rouge) {
            std::vector<std::int32_t> written;
            for (auto logits = d.begin(p.tokens, i); written.size() < length;) {
                if (!logits)
                    return logits.error();
                written.push_back(likeliest(*logits));
                if (written.size() < length)
                    logits = d.step(written.back());
            }
            out.rouge[i] = rouge_l(words(written), p.words)->f;
        }
        if (by_kl) {
            auto logits = d.begin(p.tokens, i);
            for (std::size_t k = 0; k < length; ++k) {
                if (!logits)
                    return logits.error();
                const std::size_t vocabulary = logits->size();
                at[i].push_back(divergence({p.exact.data() + k * vocabulary, vocabulary}, *logits));
                if (k + 1 < length)
                    logits = d.step(p.continuation[k]);
            }
        }
        bits[i] = d.average_bits();
        return {};
    });
    if (!done)
        return done;
    out.bits = mean_of(bits);
    if (by_kl) {
        out.kl_at.resize(length);
        for (const auto& each : at) {
            out.kl.push_back(mean_of(each));
            for (std::size_t k = 0; k < length; ++k)
                out.kl_at[k] += each[k] / static_cast<double>(n);
        }
    }
    return out;
}

status
study::for_each_prompt(const std::string& stage,
                       const std::function<status(session&, std::span<const std::int32_t>, std::size_t)>& f) {
    return for_each(stage,
                    [&](std::size_t t, std::size_t i) { return f(sessions_[t], prompts_[i].tokens, i); });
}

} // namespace lm
