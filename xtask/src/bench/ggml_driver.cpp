// Products of ggml's CPU backend, one repetition on demand.
//
// Argument: the number of threads. Commands come one a line, answers are one line of JSON each:
//
//   load TYPE OUT IN BYTES   as many weights [OUT, IN] as make at least BYTES, as their type stores them
//                            and in each form that the backend would rearrange them into
//                            -> {"bytes": ..., "forms": [names]}
//   time ROWS                every weight once, times the same activations [ROWS, IN]
//                            -> {"seconds": [one of each form], "deviation": [one of each form]}
//
// `deviation` is the relative RMS difference to the product of the dequantised weights in f64; it says
// that what was timed is the product. A line {"error": ...} answers what cannot be done.

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <strings.h>
#include <thread>
#include <vector>

namespace {

struct Free {
    void operator()(ggml_context *c) const { ggml_free(c); }
    void operator()(ggml_backend_buffer *b) const { ggml_backend_buffer_free(b); }
};
using Context = std::unique_ptr<ggml_context, Free>;
using Buffer = std::unique_ptr<ggml_backend_buffer, Free>;

// Rows that are quantised; every weight repeats them. No kernel is faster for it: what it reads lies at
// other addresses each time.
constexpr int64_t SAMPLE = 64;

Context context(size_t tensors, size_t graph = 0) {
    const size_t size = ggml_tensor_overhead() * tensors + (graph ? ggml_graph_overhead_custom(graph, false) : 0);
    Context made(ggml_init({size, nullptr, true}));
    if (!made) throw std::runtime_error("ggml_init failed");
    return made;
}

// A graph over all weights of a form for one number of rows.
struct Product {
    Context owner;
    Buffer memory;
    ggml_cgraph *graph;
    ggml_tensor *result;
};

struct Form {
    std::string name;
    Context owner;
    Buffer memory;
    std::vector<ggml_tensor *> weights;
    std::map<int64_t, Product> products;
};

std::vector<float> uniform(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> range(-1.0f, 1.0f);
    std::vector<float> values(n);
    for (float &v : values) v = range(random);
    return values;
}

class Driver {
  public:
    explicit Driver(int threads) : cpu(ggml_backend_cpu_init()) {
        if (!cpu) throw std::runtime_error("ggml has no CPU backend");
        ggml_backend_cpu_set_n_threads(cpu, threads);
    }

    std::string features() const {
        std::string text = std::string("ggml ") + ggml_version() + " " + ggml_commit();
        auto get = reinterpret_cast<ggml_backend_get_features_t>(
            ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_get_features"));
        if (!get) return text;
        for (auto *f = get(ggml_backend_cpu_reg()); f->name; f++) text += std::string(" ") + f->name;
        return text;
    }

    std::string load(const std::string &name, int64_t out, int64_t in, size_t bytes) {
        forms.clear();
        const ggml_type type = type_named(name);
        if (out < SAMPLE || out % SAMPLE || in <= 0 || in % ggml_blck_size(type))
            throw std::runtime_error("weights of this shape do not go with " + name);
        const size_t row = ggml_row_size(type, in);
        const size_t count = (bytes + row * out - 1) / (row * out);
        inputs = in;

        const std::vector<float> values = uniform(SAMPLE * in, 1);
        std::vector<uint8_t> sample(row * SAMPLE);
        ggml_quantize_chunk(type, values.data(), sample.data(), 0, SAMPLE, in, nullptr);
        dequantised = values;
        if (type != GGML_TYPE_F32)
            ggml_get_type_traits(type)->to_float(sample.data(), dequantised.data(), SAMPLE * in);
        std::vector<uint8_t> weight;
        for (int64_t i = 0; i < out / SAMPLE; i++) weight.insert(weight.end(), sample.begin(), sample.end());

        for (ggml_backend_buffer_type_t kind : kinds(type, out, in)) {
            Form form{ggml_backend_buft_name(kind), context(count), nullptr, {}, {}};
            for (size_t i = 0; i < count; i++)
                form.weights.push_back(ggml_new_tensor_2d(form.owner.get(), type, in, out));
            form.memory.reset(ggml_backend_alloc_ctx_tensors_from_buft(form.owner.get(), kind));
            if (!form.memory) throw std::runtime_error("no memory for " + name + " weights");
            ggml_backend_buffer_set_usage(form.memory.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            for (ggml_tensor *w : form.weights) ggml_backend_tensor_set(w, weight.data(), 0, weight.size());
            forms.push_back(std::move(form));
        }

        std::string names;
        for (const Form &f : forms) names += (names.empty() ? "\"" : ", \"") + f.name + "\"";
        return "{\"bytes\": " + std::to_string(count * weight.size()) + ", \"forms\": [" + names + "]}";
    }

    std::string time(int64_t rows) {
        if (forms.empty() || rows < 1) throw std::runtime_error("time: needs weights and at least one row");
        std::ostringstream seconds, deviations;
        for (Form &form : forms) {
            auto found = form.products.find(rows);
            const bool first = found == form.products.end();
            if (first) found = form.products.emplace(rows, product(form, rows)).first;
            const auto start = std::chrono::steady_clock::now();
            if (ggml_backend_graph_compute(cpu, found->second.graph) != GGML_STATUS_SUCCESS)
                throw std::runtime_error("ggml could not compute the product");
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            // Its threads wait for work a few milliseconds before they sleep; what is measured next
            // must not share the processor with them.
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            if (first) last_deviation[form.name] = deviation(found->second, rows);
            const char *comma = &form == &forms.front() ? "" : ", ";
            seconds << comma << took.count();
            deviations << comma << last_deviation[form.name];
        }
        return "{\"seconds\": [" + seconds.str() + "], \"deviation\": [" + deviations.str() + "]}";
    }

  private:
    static ggml_type type_named(const std::string &name) {
        for (int i = 0; i < GGML_TYPE_COUNT; i++) {
            const auto type = static_cast<ggml_type>(i);
            if (ggml_blck_size(type) > 0 && strcasecmp(ggml_type_name(type), name.c_str()) == 0) return type;
        }
        throw std::runtime_error("ggml has no type " + name);
    }

    // Where weights can lie: as stored, and what else the backend says it multiplies from.
    std::vector<ggml_backend_buffer_type_t> kinds(ggml_type type, int64_t out, int64_t in) const {
        std::vector<ggml_backend_buffer_type_t> found{ggml_backend_get_default_buffer_type(cpu)};
        ggml_backend_dev_t device = ggml_backend_get_device(cpu);
        auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
            ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts"));
        if (!extra) return found;
        for (auto *kind = extra(device); kind && *kind; kind++) {
            Context asked = context(3);
            Buffer empty(ggml_backend_buft_alloc_buffer(*kind, 0));
            ggml_tensor *w = ggml_new_tensor_2d(asked.get(), type, in, out);
            ggml_tensor *x = ggml_new_tensor_2d(asked.get(), GGML_TYPE_F32, in, 1);
            w->buffer = empty.get();
            if (ggml_backend_dev_supports_op(device, ggml_mul_mat(asked.get(), w, x))) found.push_back(*kind);
        }
        return found;
    }

    // All results share one place, as they would in a model.
    Product product(const Form &form, int64_t rows) const {
        const size_t count = form.weights.size(), nodes = 2 * count + 16;
        Product made{context(count + 1, nodes), nullptr, nullptr, nullptr};
        ggml_context *c = made.owner.get();
        ggml_tensor *x = ggml_new_tensor_2d(c, GGML_TYPE_F32, inputs, rows);
        made.graph = ggml_new_graph_custom(c, nodes, false);
        const size_t align = ggml_backend_get_alignment(cpu);
        const size_t after = (ggml_nbytes(x) + align - 1) / align * align;
        const size_t result = sizeof(float) * form.weights[0]->ne[1] * rows;
        made.memory.reset(ggml_backend_alloc_buffer(cpu, after + result + align));
        if (!made.memory) throw std::runtime_error("no memory for activations");
        auto *base = static_cast<char *>(ggml_backend_buffer_get_base(made.memory.get()));
        ggml_backend_tensor_alloc(made.memory.get(), x, base);
        for (ggml_tensor *w : form.weights) {
            made.result = ggml_mul_mat(c, w, x);
            ggml_backend_tensor_alloc(made.memory.get(), made.result, base + after);
            ggml_build_forward_expand(made.graph, made.result);
        }
        const std::vector<float> values = uniform(inputs * rows, 2);
        ggml_backend_tensor_set(x, values.data(), 0, ggml_nbytes(x));
        return made;
    }

    double deviation(const Product &product, int64_t rows) const {
        const std::vector<float> x = uniform(inputs * rows, 2);
        std::vector<float> got(ggml_nelements(product.result));
        ggml_backend_tensor_get(product.result, got.data(), 0, ggml_nbytes(product.result));
        const int64_t out = product.result->ne[0];
        double wrong = 0, whole = 0;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t s = 0; s < SAMPLE; s++) {
                double want = 0;
                for (int64_t i = 0; i < inputs; i++)
                    want += double(dequantised[s * inputs + i]) * x[r * inputs + i];
                for (int64_t o = s; o < out; o += SAMPLE) {
                    const double d = got[r * out + o] - want;
                    wrong += d * d;
                    whole += want * want;
                }
            }
        }
        return std::sqrt(wrong / whole);
    }

    ggml_backend_t cpu;
    int64_t inputs = 0;
    std::vector<float> dequantised; // [SAMPLE, inputs]
    std::vector<Form> forms;
    std::map<std::string, double> last_deviation;
};

} // namespace

int main(int argc, char **argv) try {
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    Driver driver(argc > 1 ? std::stoi(argv[1]) : 1);
    std::cout << "ready " << driver.features() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command, type;
        int64_t a = 0, b = 0, bytes = 0;
        words >> command;
        std::string answer;
        try {
            if (command == "load" && words >> type >> a >> b >> bytes && bytes > 0)
                answer = driver.load(type, a, b, static_cast<size_t>(bytes));
            else if (command == "time" && words >> a)
                answer = driver.time(a);
            else if (command == "quit")
                return 0;
            else
                answer = "{\"error\": \"no such command\"}";
        } catch (const std::exception &e) {
            answer = std::string("{\"error\": \"") + e.what() + "\"}";
        }
        std::cout << answer << std::endl;
    }
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << std::endl;
    return 1;
}
