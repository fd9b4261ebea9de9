import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.LongStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of Kafka's own producer in closed loops, as orders on standard input ask for them.
 *
 * <p>Arguments: bootstrap servers, number of producers, topic, partitions, records of a transaction,
 * bytes of a record. An order is a line "PRODUCERS SECONDS"; its answer is a line "COUNT ELAPSED_S
 * P50_MS P99_MS".
 */
public final class NativeLoop {
  private static final double NS_PER_MS = 1e6;
  private static final double NS_PER_S = 1e9;

  private final String topic;
  private final int partitions;
  private final int records;
  private final byte[] value;
  private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
  private final ExecutorService threads = Executors.newCachedThreadPool();

  private NativeLoop(String topic, int partitions, int records, int bytes) {
    this.topic = topic;
    this.partitions = partitions;
    this.records = records;
    this.value = new byte[bytes];
    Arrays.fill(value, (byte) 'x');
  }

  public static void main(String[] args) throws Exception {
    NativeLoop loop =
        new NativeLoop(
            args[2],
            Integer.parseInt(args[3]),
            Integer.parseInt(args[4]),
            Integer.parseInt(args[5]));
    loop.connect(args[0], Integer.parseInt(args[1]));
    System.out.println("ready");
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      String[] words = order.split(" ");
      System.out.println(loop.run(Integer.parseInt(words[0]), Double.parseDouble(words[1])));
    }
    System.exit(0); // a broker that is gone must not hold the process
  }

  private void connect(String bootstrap, int count) throws Exception {
    for (int number = 0; number < count; number++) {
      Properties options = new Properties();
      options.put("bootstrap.servers", bootstrap);
      options.put("transactional.id", "bench-java-" + number);
      options.put("linger.ms", "0");
      options.put("buffer.memory", "1048576");
      ByteArraySerializer bytes = new ByteArraySerializer();
      producers.add(new KafkaProducer<>(options, bytes, bytes));
    }
    List<Future<?>> known = new ArrayList<>();
    for (KafkaProducer<byte[], byte[]> producer : producers) {
      known.add(threads.submit(producer::initTransactions));
    }
    for (Future<?> one : known) {
      one.get();
    }
  }

  private String run(int count, double seconds) throws Exception {
    long began = System.nanoTime();
    long until = began + (long) (seconds * NS_PER_S);
    List<Future<long[]>> running = new ArrayList<>();
    for (KafkaProducer<byte[], byte[]> producer : producers.subList(0, count)) {
      running.add(threads.submit(() -> commitUntil(producer, until)));
    }
    LongStream.Builder all = LongStream.builder();
    for (Future<long[]> one : running) {
      Arrays.stream(one.get()).forEach(all);
    }
    double elapsed = (System.nanoTime() - began) / NS_PER_S;
    long[] took = all.build().sorted().toArray();
    return String.format(
        Locale.ROOT,
        "%d %.6f %.3f %.3f",
        took.length,
        elapsed,
        took[took.length / 2] / NS_PER_MS,
        took[Math.min(took.length - 1, took.length * 99 / 100)] / NS_PER_MS);
  }

  private long[] commitUntil(KafkaProducer<byte[], byte[]> producer, long until) {
    LongStream.Builder took = LongStream.builder();
    for (long start = System.nanoTime(); start < until; start = System.nanoTime()) {
      producer.beginTransaction();
      for (int number = 0; number < records; number++) {
        producer.send(new ProducerRecord<>(topic, number % partitions, null, value));
      }
      producer.commitTransaction();
      took.add(System.nanoTime() - start);
    }
    return took.build().toArray();
  }
}
