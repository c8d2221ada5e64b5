// The loop that BPE and SentencePiece share: merge the best pair of neighbours until none is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace lm {

/// A piece of a text.
struct text_symbol {
    std::size_t start;
    std::size_t size;
    std::int32_t id; ///< whatever the vocabulary numbers
};

/// What two neighbours may become. Lower costs come first; of equal ones, the leftmost.
struct symbol_merge {
    double cost;
    std::int32_t id;
};

/// Merges the symbols of one text at a time, in n log n steps. Keeps its memory for the next text.
class symbol_merger {
  public:
    void clear() noexcept { nodes_.clear(); }

    /// Adds the next symbol of the text.
    void add(std::size_t start, std::size_t size, std::int32_t id) {
        nodes_.push_back({{start, size, id}, nodes_.size() - 1, nodes_.size() + 1});
    }

    /// Merges as long as `rule(left, right)` gives a `symbol_merge` for two neighbours.
    template <class Rule>
    void run(const Rule& rule) {
        for (std::size_t i = 0; i + 1 < nodes_.size(); ++i)
            consider(i, rule);
        while (!queue_.empty()) {
            const candidate best = queue_.top();
            queue_.pop();
            node& left = nodes_[best.left];
            // A part that was merged since then has another size, or none.
            if (left.symbol.size == 0 || left.next >= nodes_.size() ||
                left.symbol.size + nodes_[left.next].symbol.size != best.size)
                continue;
            node& right = nodes_[left.next];
            left.symbol.size = best.size;
            left.symbol.id = best.id;
            left.next = right.next;
            right.symbol.size = 0;
            if (right.next < nodes_.size())
                nodes_[right.next].previous = best.left;
            if (left.previous < nodes_.size())
                consider(left.previous, rule);
            consider(best.left, rule);
        }
    }

    /// Calls `visit(symbol)` for each symbol that is left, in the text's order.
    template <class Visit>
    void for_each(const Visit& visit) const {
        for (std::size_t i = 0; i < nodes_.size(); i = nodes_[i].next)
            visit(nodes_[i].symbol);
    }

  private:
    // Neighbours beyond either end are numbers beyond the last node's.
    struct node {
        text_symbol symbol;
        std::size_t previous;
        std::size_t next;
    };
    struct candidate {
        double cost;
        std::size_t left;
        std::size_t size;
        std::int32_t id;
        bool operator<(const candidate& other) const noexcept {
            return cost != other.cost ? cost > other.cost : left > other.left;
        }
    };

    template <class Rule>
    void consider(std::size_t left, const Rule& rule) {
        const std::size_t right = nodes_[left].next;
        if (right >= nodes_.size())
            return;
        const text_symbol& a = nodes_[left].symbol;
        const text_symbol& b = nodes_[right].symbol;
        if (const std::optional<symbol_merge> merge = rule(a, b))
            queue_.push({merge->cost, left, a.size + b.size, merge->id});
    }

    std::vector<node> nodes_;
    std::priority_queue<candidate> queue_;
};

} // namespace lm
