// SPDX-License-Identifier: Apache-2.0
//
// The table behind an Ethernet port: answers request frames with frames, without any software.
// Frames arrive without preamble and check sequence, 8 bytes a beat, and are never stalled.

module ht_udp
  import ht_pkg::*;
#(
  parameter int unsigned Slots = 8,
  parameter int unsigned SlotsPerBeat = 2,
  parameter int unsigned StripeBytes = 48,
  parameter int unsigned Lines = 4,
  parameter int unsigned KeyBytes = 168,
  parameter int unsigned HeaderBytes = 24,
  parameter bit          TermsLast = 1'b0,
  parameter int unsigned BucketBits = 18,
  parameter bit          HashRing = 1'b1,
  parameter int unsigned Writers = 32,
  parameter int unsigned ReturnBeats = 128,
  parameter int unsigned ValueBytes = 1024,
  parameter int unsigned LogBits = 16,
  parameter int unsigned FrameBeats = 512,   // of frames that wait
  parameter int unsigned Clients = 256,      // requests between parser and formatter
  localparam int unsigned BeatWords = StripeBytes / 8 * SlotsPerBeat
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic                    mem_rst_ni,   // of the memory's side, at power-up
  input  logic [47:0]             mac_i,
  input  logic [31:0]             ip_i,
  input  logic [15:0]             port_i,
  input  logic                    has_header_i,   // memcached's, in front of each datagram

  input  logic                    awvalid_i,
  output logic                    awready_o,
  input  logic [7:0]              awaddr_i,
  input  logic                    wvalid_i,
  output logic                    wready_o,
  input  logic [31:0]             wdata_i,
  output logic                    bvalid_o,
  input  logic                    bready_i,
  input  logic                    arvalid_i,
  output logic                    arready_o,
  input  logic [7:0]              araddr_i,
  output logic                    rvalid_o,
  input  logic                    rready_i,
  output logic [31:0]             rdata_o,

  input  logic                    frame_valid_i,
  input  logic [63:0]             frame_data_i,
  input  logic [7:0]              frame_keep_i,
  input  logic                    frame_last_i,
  input  logic                    frame_bad_i,
  output logic                    frame_valid_o,
  input  logic                    frame_ready_i,
  output logic [63:0]             frame_data_o,
  output logic [7:0]              frame_keep_o,
  output logic                    frame_last_o,

  output logic                    mem_valid_o,
  input  logic                    mem_ready_i,
  output memory_access_t          mem_o,
  output logic [64*BeatWords-1:0] mem_data_o,
  output logic [BeatWords-1:0]    mem_mask_o,
  input  logic                    mem_return_valid_i,
  input  logic                    mem_return_is_value_i,
  input  logic [64*BeatWords-1:0] mem_return_i,

  output logic                    is_ready_o,
  output drops_t                  drops_o      // a frame was dropped
);

  logic meta_valid, meta_ready, client_valid, client_ready, key_valid, put_valid,
        put_ready;
  request_t request;
  client_t  client;
  beat_t    key, put;
  logic [31:0] now;
  logic     key_room, table_key_ready;   // the formatter sees each key that the table takes
  front_end #(.FrameBeats(FrameBeats)) u_front (
    .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i, .now_i(now),
    .frame_valid_i, .frame_data_i, .frame_keep_i, .frame_last_i, .frame_bad_i,
    .meta_valid_o(meta_valid), .meta_ready_i(meta_ready), .meta_o(request),
    .client_valid_o(client_valid), .client_ready_i(client_ready), .client_o(client),
    .key_valid_o(key_valid), .key_ready_i(table_key_ready && key_room), .key_o(key),
    .val_valid_o(put_valid), .val_ready_i(put_ready), .val_o(put), .drops_o
  );

  logic answer_valid, answer_ready, ended, got_valid, got_ready;
  beat_t got;
  response_t answer;
  ht_axi #(
    .Slots(Slots), .SlotsPerBeat(SlotsPerBeat), .StripeBytes(StripeBytes), .Lines(Lines),
    .KeyBytes(KeyBytes), .HeaderBytes(HeaderBytes), .TermsLast(TermsLast),
    .BucketBits(BucketBits), .HashRing(HashRing), .Writers(Writers), .ReturnBeats(ReturnBeats),
    .ValueBytes(ValueBytes), .LogBits(LogBits)
  ) u_table (
    .clk_i, .rst_ni, .mem_rst_ni,
    .awvalid_i, .awready_o, .awaddr_i, .wvalid_i, .wready_o, .wdata_i, .bvalid_o, .bready_i,
    .arvalid_i, .arready_o, .araddr_i, .rvalid_o, .rready_i, .rdata_o,
    .meta_valid_i(meta_valid), .meta_ready_o(meta_ready), .meta_i(request),
    .key_valid_i(key_valid && key_room), .key_ready_o(table_key_ready), .key_data_i(key.data),
    .key_keep_i(key.keep), .key_last_i(key.last),
    .val_valid_i(put_valid), .val_ready_o(put_ready), .val_data_i(put.data),
    .val_keep_i(put.keep), .val_last_i(put.last),
    .meta_valid_o(answer_valid), .meta_ready_i(answer_ready), .meta_o(answer),
    .val_valid_o(got_valid), .val_ready_i(got_ready), .val_data_o(got.data),
    .val_keep_o(got.keep), .val_last_o(got.last),
    .mem_valid_o, .mem_ready_i, .mem_o, .mem_data_o, .mem_mask_o, .mem_return_valid_i,
    .mem_return_is_value_i, .mem_return_i,
    .drops_i(drops_o), .time_o(now),
    .is_ready_o, .enter_o(), .stall_o(), .status_o(), .ended_o(ended), .probe_o()
  );

  response_formatter #(.Clients(Clients)) u_formatter (
    .clk_i, .rst_ni, .mac_i, .ip_i, .port_i, .has_header_i,
    .client_valid_i(client_valid), .client_ready_o(client_ready), .client_i(client),
    .ended_i(ended),
    .key_valid_i(key_valid && table_key_ready), .key_ready_o(key_room), .key_i(key),
    .meta_valid_i(answer_valid), .meta_ready_o(answer_ready), .meta_i(answer),
    .val_valid_i(got_valid), .val_ready_o(got_ready), .val_i(got),
    .frame_valid_o, .frame_ready_i, .frame_data_o, .frame_keep_o, .frame_last_o
  );

endmodule
